"""`Retrieval`: how one request retrieves, validated on construction; the same words in Python and over HTTP."""

from dataclasses import dataclass, fields

from paceline.core.errors import InputError

TEMPLATE = "{question}\n\nUse this passage where it helps:\n{passage}"
"""The passage stands after the question: what is before it, the conversation too, keeps its K/V."""
MOST_STRIDE = 64


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Iterative retrieval: after every `every` tokens the best passage for the newest text replaces the last one."""

    every: int = 4
    """Tokens between two retrievals."""
    stride: int | None = None
    """Number of retrievals that are guessed before one call verifies them; None: the optimal number (OS3); 1: no
    guessing."""
    retriever: str | None = None
    """exact, hnsw or bm25; None: the first that the index has."""
    prefetch: int = 20
    """Passages of each verification that join the request's cache."""
    overlap: bool = True
    """Write on while a verification runs."""
    query_tokens: int = 32
    """Tokens of the query: the newest of question and answer."""
    passage_tokens: int = 256
    """Maximum tokens of a passage; a longer one is cut."""
    template: str = TEMPLATE
    """Template of what the model reads in place of the question, with {question}, {passage} and {title}."""
    cap: float = 0.6
    """OS3's highest estimate of the chance that a speculated retrieval is right."""
    window: int = 5
    """Rounds that OS3 looks back on."""
    most: int = 16
    """Longest stride that OS3 takes."""

    def __post_init__(self) -> None:
        bounds = {"every": 4096, "prefetch": 4096, "query_tokens": 4096, "passage_tokens": 1 << 20, "window": 1000,
                  "most": MOST_STRIDE, "stride": MOST_STRIDE}  # fmt: skip
        for name, most in bounds.items():
            value = getattr(self, name)
            if name == "stride" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise InputError(f"{name} is {value!r}, but it must be a whole number from 1 to {most}.")
        if isinstance(self.cap, bool) or not isinstance(self.cap, int | float) or not 0 <= self.cap <= 1:
            raise InputError(f"cap is {self.cap!r}, but it must be in [0, 1].")
        for name in ("{question}", "{passage}"):
            if name not in self.template:
                raise InputError(f"template has no {name}; it must have {{question}} and {{passage}}.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))
