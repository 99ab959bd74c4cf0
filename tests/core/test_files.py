"""Start-up files of hostile shape: one sentence, in bounded time and memory."""

import json
import os
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI

from paceline.cluster.workflow import log as workflow_log
from paceline.core import files
from paceline.core.errors import CheckpointError, InputError, PacelineError
from paceline.core.files import check_folder, json_of, lines_of, open_log, text_of, write_whole
from paceline.draft.vocabulary import strings
from paceline.engine.text import read_template
from paceline.model.blockzoo import MANIFEST, member_at
from paceline.model.checkpoint import resolve
from paceline.retrieve.datastore import KEY_WIDTH, Datastore
from paceline.retrieve.encoder import PairEncoder, SentenceEncoder
from paceline.retrieve.index import PassageIndex
from paceline.retrieve.sparse import SPARSE_ARRAYS, Sparse
from paceline.serve.encoders import encoder_at
from paceline.serve.run import config
from paceline.serve.settings import Settings, longest_key, read_toml
from paceline.simulate import log as decision_log
from paceline.simulate.record import LogFile


def member_in(path: Path) -> object:
    """The zoo's member whose manifest is this file."""
    member = path.parent / "member"
    member.mkdir(exist_ok=True)
    (member / MANIFEST).unlink(missing_ok=True)
    (member / MANIFEST).symlink_to(path)
    return member_at(member)


READERS: list[Callable[[Path], object]] = [
    read_toml,
    lambda path: list(workflow_log.read(path)),
    lambda path: list(decision_log.read(path)),
    lambda path: text_of(path, "config"),
    lambda path: json_of(path, "config"),
    read_template,
    lambda path: list(strings(path)),
    Datastore.load,
    PassageIndex.open,
    Sparse.load,
    member_in,
]


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(PacelineError) as said:
            read(path)
        assert "\n" not in str(said.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "9" * 10_000, "\0", '{"format": 1}'])
def test_json_of_hostile_shape(tmp_path: Path, text: str) -> None:
    """An index and a zoo's manifest."""
    (tmp_path / "index.json").write_text(text)
    (tmp_path / "passages.jsonl").write_text(text + "\n")
    with pytest.raises(InputError):
        PassageIndex.open(tmp_path)
    with pytest.raises(CheckpointError):
        member_in(tmp_path / "index.json")
    (tmp_path / "index.json").write_text('{"format": 1, "passages": 1, "encoder": null}')
    with pytest.raises(InputError, match="no passage"):
        PassageIndex.open(tmp_path)


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model, a draft model, an encoder: what none of their readers would come to the end of."""
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "index.json").write_text("{}")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "1_Pooling").mkdir()
    check_folder(tmp_path)
    for make in (os.mkfifo, lambda at: os.symlink("/dev/zero", at)):
        make(tmp_path / "tokenizer.json")
        for reader in (resolve, SentenceEncoder, PairEncoder, PassageIndex.open):
            with pytest.raises(InputError, match=r"tokenizer.json is no regular file"):
                reader(tmp_path)
        os.unlink(tmp_path / "tokenizer.json")
    with (tmp_path / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(files.MOST_SMALL_FILE_BYTES + 1)
    with pytest.raises(InputError, match="has 268435457 bytes"):
        resolve(tmp_path)
    os.unlink(tmp_path / "tokenizer.json")
    monkeypatch.setattr(files, "MOST_FOLDER_FILES", 2)
    with pytest.raises(InputError, match="more than 2 files"):
        resolve(tmp_path)
    os.unlink(tmp_path / "config.json")
    os.mkfifo(tmp_path / "config.json")
    assert not encoder_at(tmp_path)


def npz(path: Path, shape: str, kind: str = "<i2", compress: bool = False) -> Path:
    """A file of numpy's whose headers say this."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as made:
        for name in ("keys", "values", *SPARSE_ARRAYS):
            made.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64)
    return path


@pytest.mark.parametrize("read", [Datastore.load, Sparse.load])
def test_arrays_that_lie(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "made.npz"
    for shape in ("(1000000000000000,)", "(10**9,)", "(-1,)", "(1e9,)", "{" * 2000, "(" * 20_000 + ")" * 20_000):
        with pytest.raises(InputError) as said:
            read(npz(path, shape))
        assert "\n" not in str(said.value)
    for kind, compress in (("|O", False), ("<i2", True)):
        with pytest.raises(InputError):
            read(npz(path, "(4,)", kind, compress))
    np.savez(path, keys=np.zeros((2, KEY_WIDTH), np.int16), values=np.array([1, -5], np.int32))
    with pytest.raises(InputError, match="without tokens"):
        Datastore.load(path)


@pytest.mark.parametrize("starts", [[0, 9], [2, 1], [-1, 1], [0]])
def test_terms_that_lie(tmp_path: Path, starts: list[int]) -> None:
    whole = np.array([0, 1], np.int32)
    Sparse({"a": 0}, np.array(starts), whole, whole.astype(np.int64), 2).save(tmp_path / "bm25.npz")
    with pytest.raises(InputError, match="build the index again"):
        Sparse.load(tmp_path / "bm25.npz")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "9" * 10_000,
        "a.b" + ".c" * 5000 + " = 1",
        "a = 1\na = 2",
        "\0",
        "= 1",
    ],
)
def test_toml_of_hostile_shape(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    try:
        read_toml(path)
    except InputError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    "text", ["a" + ".a" * 500_000 + " = 1", "[a" + ".a" * 500_000 + "]", "x = {a" + ".a" * 99 + " = 1}"]
)
def test_long_keys_are_found_before_toml_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="more than 32 parts"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('a.b."c.d.e".\'x.y\' = "a.b.c.d.e.f" # 1.1.1.1\n', 4),
        ('a = """\na.b.c.d\n""""\nb.c = 1', 2),
        ("a = '''a.b.c'''\nx = 1.5", 2),
        ("x = {a . b.c = 1.5}\n[a.b.c.d]\n", 4),
        ('a = "' + '\\"' * 400_000, 1),
        ('"""' * 300_000, 1),
    ],
)
def test_parts_of_the_longest_key(text: str, parts: int) -> None:
    assert longest_key(text) == parts


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 10_000, "null", "{}", '{"event": 1}', '"' + "x" * 1000, "\0"])
def test_logs_of_hostile_shape(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(line + "\n")
    with pytest.raises(InputError):
        workflow_log.replay(list(workflow_log.read(path)))
    with pytest.raises(InputError):
        list(decision_log.read(path))


def test_events_without_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for first in ('{"event": "setup"}', '{"event": "setup", "planner": 1, "instances": 3}'):
        path.write_text(first + '\n{"event": "finish"}\n')
        with pytest.raises(InputError):
            workflow_log.replay(list(workflow_log.read(path)))


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="more than 999 bytes"):
        text_of(path, "config", most=999)
    with pytest.raises(InputError, match="line 1 has more"):
        list(lines_of(path, "log", most=999))
    assert len(text_of(path, "config", most=1000)) == 1000


def test_a_log_is_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for _ in range(2):  # with a reader, and without
        for write in (LogFile, workflow_log.write):
            with pytest.raises((InputError, OSError), match="pipe or a socket"):
                write(tmp_path / "pipe")
        if reader >= 0:
            os.close(reader)
            reader = -1
    for path in (tmp_path, tmp_path / "absent" / "x"):
        with pytest.raises(OSError):
            workflow_log.write(path)
    workflow_log.write(tmp_path / "log")({"event": "é"})
    assert json.loads((tmp_path / "log").read_text()) == {"event": "é"}
    workflow_log.write(Path("/dev/null"))({"event": "x"})


def test_a_terminal_gets_every_line() -> None:
    """However slowly it takes them."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    line, got = b"x" * 99 + b"\n", bytearray()

    def read() -> None:
        while len(got) < 1000 * (len(line) + 1):  # a terminal writes CR LF
            got.extend(os.read(master, 1 << 12))

    with open_log(Path(os.ttyname(slave))) as file:
        assert os.get_blocking(file.fileno())
        reader = threading.Timer(0.1, read)
        reader.daemon = True
        reader.start()
        for _ in range(1000):
            write_whole(file, line)
        reader.join(60)
    os.close(slave)
    os.close(master)
    assert bytes(got).replace(b"\r", b"") == 1000 * line


def test_a_line_is_written_in_as_many_parts_as_it_takes() -> None:
    class Parts:
        def __init__(self, most: int) -> None:
            self.most, self.got = most, b""

        def write(self, data: memoryview) -> int | None:
            self.got += data[: self.most]
            return min(self.most, len(data)) or None

    parts = Parts(3)
    write_whole(parts, b"0123456789")  # type: ignore[arg-type]
    assert parts.got == b"0123456789"
    with pytest.raises(BlockingIOError):
        write_whole(Parts(0), b"x")  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/stderr").exists(), reason="needs /dev/stderr")
def test_a_processs_own_output_may_be_a_pipe() -> None:
    code = (
        "from pathlib import Path; from paceline.core.files import *; write_whole(open_log(Path('/dev/stderr')), b'it')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stderr == b"it"


@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_a_certificate_is_no_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    settings = Settings(tls_cert=tmp_path / "file", tls_key=tmp_path / "file")
    with pytest.raises(InputError, match=f"{name} .* is no regular file"):
        config(FastAPI(), replace(settings, **{name: tmp_path / "pipe"}))  # type: ignore[arg-type]


def test_keys_are_what_a_header_carries(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("good\n" + "\0" * 99)
    with pytest.raises(InputError, match="API key 2 has characters"):
        Settings(api_key_file=tmp_path / "keys").keys()
    with pytest.raises(InputError, match="API key 1 has 5000 characters, more than a header carries"):
        Settings(api_keys=("x" * 5000,)).keys()
    assert Settings(api_keys=("schl\u00fcssel",)).keys() == ("schl\u00fcssel",)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc")
@pytest.mark.parametrize("read", [text_of, json_of, lambda path, what: list(lines_of(path, what))])
def test_a_file_that_opens_and_cannot_be_read(read: Callable[[Path, str], object]) -> None:
    with pytest.raises(InputError, match=r"config /proc/self/mem cannot be read \(Input/output error\); check"):
        read(Path("/proc/self/mem"), "config")


@pytest.mark.parametrize(("content", "says"), [(b"", "is empty"), (b" \n", "is empty"), (b"\0" * 99, "NUL")])
def test_a_chat_template_says_something(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "t.jinja").write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_template(tmp_path / "t.jinja")


def test_a_queue_that_calls_itself_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg does, of which nothing can be read without waiting."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setattr(files, "open_regular", lambda path, what: os.fdopen(reader, "rb"))
    with pytest.raises(InputError, match="is no regular file"):
        text_of(tmp_path / "kmsg", "config")
    os.close(writer)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert text_of(path, "config") == '{"a": 1}' and json_of(path, "config") == {"a": 1}
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="cannot be read"):
        text_of(path, "config")
