"""An index on disk: passages, and what each kind of retriever needs of them. `paceline index` makes one.

index.json      format, number of passages, words a passage, encoder
passages.jsonl  title and text; a passage's number is its line
vectors.npy     [N, d] int16, where an encoder was given
vectors.part    rows of it until all is built, and vectors.part.name, whose they are: a build that was stopped goes on
hnsw.faiss      the graph over them, where faiss is installed
bm25.npz        terms, where bm25s is installed
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.core.files import check_folder, json_of, lines_of
from paceline.retrieve import dense, passages
from paceline.retrieve.encoder import Encoder, SentenceEncoder, StaticEncoder
from paceline.retrieve.passages import Passage
from paceline.retrieve.retriever import Retriever
from paceline.retrieve.sparse import Sparse

FORMAT = 1
VECTORS_PART, VECTORS_OF = "vectors.part", "vectors.part.name"
CHUNK_PASSAGES = 1024
"""Passages whose vectors are made and kept together."""
INDEX_KINDS = ("exact", "hnsw", "bm25")
Load = Callable[[Path], Encoder]


@dataclass(eq=False)
class PassageIndex:
    """Passages of one folder and their retrievers, loaded when first asked for."""

    path: Path
    passages: Sequence[Passage]
    about: dict[str, Any]
    encoder: Encoder | None = None
    load: Load = SentenceEncoder
    _made: dict[str, Retriever] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | str, encoder: Encoder | Path | str | None = None) -> "PassageIndex":
        """An index as `build` left it. `encoder`: in place of the folder that the index remembers. InputError for a
        folder without one, and for vectors of another encoder."""
        path = Path(path)
        about = _about(path)
        found = [_passage(path, line) for line in lines_of(path / "passages.jsonl", "index")]
        if len(found) != about["passages"]:
            raise InputError(f"{path} has {len(found)} of {about['passages']} passages; build the index again.")
        made = cls(path, found, about)
        if isinstance(encoder, str | Path):
            encoder = made._load(Path(encoder))
        if encoder is not None:
            made._take(encoder)
        return made

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the retrievers that can run on it."""
        files = {"exact": "vectors.npy", "hnsw": "hnsw.faiss", "bm25": "bm25.npz"}
        return tuple(kind for kind in INDEX_KINDS if (self.path / files[kind]).is_file())

    def retriever(self, kind: str | None = None) -> Retriever:
        """The retriever of this kind; None: the first that there is. InputError for one that was not built."""
        kind = kind or self.kinds[0]
        if kind not in self.kinds:
            raise InputError(
                f"retriever is {kind!r}, but this index has {', '.join(self.kinds)}; build it with an encoder and "
                "paceline[rag] for all."
            )
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> Retriever:
        if kind == "bm25":
            found = Sparse.load(self.path / "bm25.npz")
            if found.size != len(self.passages):
                raise InputError(f"{self.path} has terms of {found.size} other passages; build the index again.")
            return found
        if self.encoder is None:
            self._take(self._load(Path(self.about["encoder"]["path"])))
        assert self.encoder is not None
        try:
            vectors = np.load(self.path / "vectors.npy", allow_pickle=False)
            wrong = vectors.ndim != 2 or vectors.dtype.kind != "i" or len(vectors) != len(self.passages)
        except Exception as error:  # a damaged file raises what it likes
            raise InputError(f"{self.path / 'vectors.npy'} cannot be read ({type(error).__name__}: {error}).") from None
        if wrong or vectors.shape[1] != self.encoder.width:
            raise InputError(f"{self.path / 'vectors.npy'} has no vector of each passage; build the index again.")
        if kind == "exact":
            return dense.ExactVectors(vectors, self.encoder)
        return dense.VectorGraph(vectors, self.encoder, dense.read_graph(self.path / "hnsw.faiss"))

    def _load(self, path: Path) -> Encoder:
        static = (self.about["encoder"] or {}).get("static", False)
        return StaticEncoder(path) if static else self.load(path)

    def _take(self, encoder: Encoder) -> None:
        mine = self.about["encoder"]
        if mine is None:
            raise InputError(f"{self.path} was built without an encoder; build it with one, or leave the encoder out.")
        if mine["name"] != encoder.name:
            raise InputError(
                f"{self.path} has vectors of another encoder ({mine['name']}, not {encoder.name}): give the one that "
                "it was built with, or build it again."
            )
        self.encoder = encoder


def _about(path: Path) -> dict[str, Any]:
    if not (path / "index.json").exists():
        raise InputError(f"{path} holds no index; paceline index makes one.")
    check_folder(path)
    about = json_of(path / "index.json", "index")
    given = about if isinstance(about, dict) else {}
    if given.get("format") != FORMAT:
        raise InputError(
            f"{path} has an index of format {str(given.get('format'))[:40]}, not {FORMAT}; build it again."
        )
    coder = given.get("encoder", "")
    named = coder is None or (isinstance(coder, dict) and isinstance(coder.get("path"), str) and "name" in coder)
    if not named or type(given.get("passages")) is not int:
        raise InputError(f"{path / 'index.json'} lacks what an index says of its passages; build it again.")
    return given


def _passage(path: Path, line: bytes) -> Passage:
    try:
        found = json.loads(line)
        title, text = found["title"], found["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path / 'passages.jsonl'} has a line that is no passage ({error!r}).") from None
    if not isinstance(title, str) or not isinstance(text, str):
        raise InputError(f"{path / 'passages.jsonl'} has a passage whose title or text is no text; build it again.")
    return Passage(title, text)


def build(
    folder: Path | str, out: Path | str, encoder: Encoder | Path | str | None = None, words: int = 100,
    report: Callable[[int, int], None] = lambda done, of: None, *, narrow: bool = False, static: bool = False,
) -> PassageIndex:  # fmt: skip
    """Index the texts of a folder. `encoder`: a folder in Hugging Face layout; None: bm25 alone. `report`: called with
    how many passages of how many have vectors. `narrow`: these are computed in bfloat16; `static`: they are means of
    the encoder's input embeddings, without its layers; an `encoder` that is no folder knows neither. A build that was
    stopped goes on where the same texts and encoder are given again. InputError for a folder without text, or where
    nothing can be built."""
    out, sparse, graph = Path(out), find_spec("bm25s") is not None, find_spec("faiss") is not None
    if encoder is None and not sparse:
        raise InputError("There is no encoder and no bm25s: give --encoder, or pip install 'paceline[rag]'.")
    if narrow and static:
        raise InputError("narrow changes nothing of static, which computes no layer; leave one of them out.")
    if (narrow or static) and not isinstance(encoder, str | Path):
        raise InputError("narrow and static say how an encoder is read from a folder; give one with --encoder.")
    begun = (out / VECTORS_OF).is_file() or (out / "index.json").is_file()
    if out.exists() and not begun and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there and holds no index; give another folder to write to.")
    made = passages.read(Path(folder), words)
    where = str(Path(encoder).resolve()) if isinstance(encoder, str | Path) else ""
    coder: Encoder | None = None if isinstance(encoder, str | Path) else encoder
    if isinstance(encoder, str | Path):
        coder = StaticEncoder(Path(encoder)) if static else SentenceEncoder(Path(encoder), narrow)
    lines = [json.dumps({"title": p.title, "text": p.text}, ensure_ascii=True) for p in made]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    _begin(out, f"{coder and coder.name} {narrow} {hashlib.sha256(text.encode()).hexdigest()}")
    for old in ("index.json", "vectors.npy", "hnsw.faiss", "bm25.npz"):
        (out / old).unlink(missing_ok=True)
    (out / "passages.jsonl").write_text(text, encoding="utf-8")
    if coder is not None:
        vectors = _encode(coder, made, report, out / VECTORS_PART)
        np.save(out / "vectors.npy", vectors)
        if graph:
            dense.write_graph(dense.connect(vectors), out / "hnsw.faiss")
    if sparse:
        Sparse.of([p.text for p in made]).save(out / "bm25.npz")
    mine = None if coder is None else {"name": coder.name, "width": coder.width, "path": where, "static": static}
    about = {"format": FORMAT, "passages": len(made), "words": words, "encoder": mine}
    (out / "index.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (out / VECTORS_PART).unlink()
    (out / VECTORS_OF).unlink()
    return PassageIndex.open(out, coder)


def _begin(out: Path, name: str) -> None:
    """Mark a folder as one where this build goes on: rows of vectors stay if they have this name."""
    about, part = out / VECTORS_OF, out / VECTORS_PART
    if not part.is_file() or not about.is_file() or about.read_text(encoding="utf-8") != name:
        about.write_text("", encoding="utf-8")
        part.write_bytes(b"")
        about.write_text(name, encoding="utf-8")


def _encode(
    encoder: Encoder, made: Sequence[Passage], report: Callable[[int, int], None], part: Path
) -> NDArray[np.int16]:
    """[N, d] Vectors of passages. `part`: a file with the rows that are done."""
    row = 2 * encoder.width
    done = part.stat().st_size // row // CHUNK_PASSAGES * CHUNK_PASSAGES
    with part.open("r+b") as file:
        file.truncate(done * row)
        file.seek(done * row)
        for start in range(done, len(made), CHUNK_PASSAGES):
            file.write(dense.whole(encoder.encode([p.text for p in made[start : start + CHUNK_PASSAGES]])).tobytes())
            file.flush()
            report(min(len(made), start + CHUNK_PASSAGES), len(made))
    return np.fromfile(part, np.int16).reshape(len(made), encoder.width)
