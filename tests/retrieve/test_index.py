"""An index from a folder by one command, and what is refused."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from paceline import InputError
from paceline.cli import app
from paceline.retrieve import PassageIndex, Retrieval, build, index
from paceline.retrieve.encoder import SentenceEncoder
from paceline.retrieve.passages import plain, read
from tests.retrieve.scenes import Hashed, folder

pytest.importorskip("bm25s", reason="bm25s is not installed: the rag extra")
pytest.importorskip("faiss", reason="faiss is not installed: the rag extra")
REAL = Path(os.environ.get("PACELINE_REAL", "../real")) / "minilm"


def test_the_command_builds_the_smallest_index(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("one apple\nand two", encoding="utf-8")
    (tmp_path / "texts/b.html").write_text("<head><title>no</title></head><p>three <b>rivers", encoding="utf-8")
    (tmp_path / "texts/c.bin").write_bytes(b"\xff")
    done = CliRunner().invoke(app, ["index", str(tmp_path / "texts"), "--out", str(tmp_path / "out"), "--words", "2"])
    assert done.exit_code == 0 and "3 passages of 2 words; retrievers: bm25." in done.output
    index = PassageIndex.open(tmp_path / "out")
    assert [(p.title, p.text) for p in index.passages] == [
        ("a.txt#0", "one apple"), ("a.txt#1", "and two"), ("b.html#0", "three rivers"),
    ]  # fmt: skip
    it = index.retriever()
    assert it.kind == "bm25" and it.search([it.query("which rivers?")], 1)[0][0][0] == 2


def test_an_index_is_read_as_it_was_built(tmp_path: Path) -> None:
    made = build(folder(tmp_path / "texts"), tmp_path / "out", Hashed(), words=20)
    assert made.kinds == ("exact", "hnsw", "bm25")
    again = PassageIndex.open(tmp_path / "out", Hashed())
    for kind in made.kinds:
        a, b = made.retriever(kind), again.retriever(kind)
        assert a.search([a.query("Tom counts apples")], 5) == b.search([b.query("Tom counts apples")], 5)
    later = PassageIndex.open(tmp_path / "out")
    later.load = lambda path: Hashed("other")
    with pytest.raises(InputError, match="another encoder"):
        later.retriever("exact")
    assert build(folder(tmp_path / "texts"), tmp_path / "out", None, words=20).kinds == ("bm25",), "nothing old is left"


def test_a_build_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Hashed):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.most, self.read = most, 0

        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.read + len(texts) > self.most:
                raise KeyboardInterrupt
            self.read += len(texts)
            return super().encode(texts)

    monkeypatch.setattr(index, "CHUNK_PASSAGES", 2)
    texts = folder(tmp_path / "texts")
    want = build(texts, tmp_path / "whole", Hashed(), words=20)
    of = len(want.passages)
    assert of > 6
    with pytest.raises(KeyboardInterrupt):
        build(texts, tmp_path / "out", Counting(5), words=20)
    rest = Counting(of - 4)
    made = build(texts, tmp_path / "out", rest, words=20)
    assert rest.read == of - 4, "four were done"
    assert (tmp_path / "out/vectors.npy").read_bytes() == (tmp_path / "whole/vectors.npy").read_bytes()
    assert made.kinds == want.kinds and not list((tmp_path / "out").glob("vectors.part*"))
    with pytest.raises(KeyboardInterrupt):
        build(texts, tmp_path / "out", Counting(5), words=20)
    assert build(texts, tmp_path / "out", Hashed(), words=10).passages != want.passages, "other passages begin anew"


def test_a_build_that_was_stopped_behind_its_vectors_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one that has none, too."""

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    texts = folder(tmp_path / "texts")
    for name, encoder in (("dense", Hashed()), ("words", None)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(index.Sparse, "of", stop)
            build(texts, tmp_path / name, encoder, words=20)
        assert "bm25" in build(texts, tmp_path / name, encoder, words=20).kinds
        assert not list((tmp_path / name).glob("vectors.part*"))


def test_what_is_refused(tmp_path: Path) -> None:
    texts = folder(tmp_path / "texts")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/a.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(InputError, match="no text in it"):
        build(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="not a folder"):
        build(tmp_path / "none", tmp_path / "out")
    with pytest.raises(InputError, match="holds no index"):
        build(texts, texts)
    with pytest.raises(InputError, match="holds no encoder"):
        build(texts, tmp_path / "out", tmp_path)
    with pytest.raises(InputError, match="words is 0"):
        read(texts, 0)
    with pytest.raises(InputError, match="paceline index makes one"):
        PassageIndex.open(tmp_path)
    for options in ({"static": True}, {"narrow": True}):
        with pytest.raises(InputError, match="from a folder"):
            build(texts, tmp_path / "out", Hashed(), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave one of them out"):
        build(texts, tmp_path / "out", tmp_path, narrow=True, static=True)
    done = CliRunner().invoke(app, ["index", str(texts), "-o", str(tmp_path / "s.npz"), "--model", "m", "--narrow"])
    assert done.exit_code == 2 and "--narrow is for an index" in done.stderr
    build(texts, tmp_path / "out", Hashed())
    with pytest.raises(InputError, match="another encoder"):
        PassageIndex.open(tmp_path / "out", Hashed("other"))
    vectors = np.load(tmp_path / "out/vectors.npy")
    for lie in (vectors[:, 1:], vectors[1:]):
        np.save(tmp_path / "out/vectors.npy", lie)
        with pytest.raises(InputError, match="no vector of each passage"):
            PassageIndex.open(tmp_path / "out", Hashed()).retriever("exact")
    np.savez(tmp_path / "zip.npz", vectors)
    (tmp_path / "zip.npz").replace(tmp_path / "out/vectors.npy")
    with pytest.raises(InputError, match=r"vectors\.npy cannot be read"):
        PassageIndex.open(tmp_path / "out", Hashed()).retriever("exact")
    build(texts, tmp_path / "words")
    with pytest.raises(InputError, match="without an encoder"):
        PassageIndex.open(tmp_path / "words", Hashed())
    with pytest.raises(InputError, match="this index has bm25"):
        PassageIndex.open(tmp_path / "words").retriever("exact")
    about = json.loads((tmp_path / "words/index.json").read_text())
    (tmp_path / "words/index.json").write_text(json.dumps({**about, "format": 9}))
    with pytest.raises(InputError, match="format 9"):
        PassageIndex.open(tmp_path / "words")
    (tmp_path / "texts/bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"bad.txt cannot be read as UTF-8"):
        build(texts, tmp_path / "out")


def test_wishes_out_of_range_are_refused() -> None:
    bad = {"every": 0, "stride": 0, "prefetch": 0, "most": 65, "cap": 1.5, "template": "{question}", "window": True}
    for name, value in bad.items():
        with pytest.raises(InputError, match=name):
            Retrieval(**{name: value})  # type: ignore[arg-type]


def test_html_shows_what_is_read() -> None:
    assert plain("<p>a &amp; b<script>no()</script><style>x</style> c").split() == ["a", "&", "b", "c"]


@pytest.mark.skipif(not REAL.is_dir(), reason="minilm is not there (PACELINE_REAL)")
def test_the_real_encoder_ranks_by_meaning() -> None:
    encoder = SentenceEncoder(REAL)
    texts = ["A dog runs in the park.", "The stock market fell today.", "A puppy plays outside."]
    vectors = encoder.encode(texts)
    scores = vectors @ vectors.T
    assert scores[0, 2] > 0.3 > scores[0, 1] and abs(scores[0, 0] - 1) < 1e-5
    assert abs(vectors - [encoder.encode([text])[0] for text in texts]).max() < 1e-5
