"""Filling in the middle: what stands before and behind a gap as the tokens that code models were trained with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.serve.errors import ApiError
from paceline.serve.prompts import Prompt, check_length

if TYPE_CHECKING:
    from paceline.serve.server import Server


@dataclass(frozen=True, slots=True)
class FimNames:
    """Texts of one family's tokens, in the order in which they stand: PREFIX before SUFFIX behind MIDDLE."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()
    """More tokens that end what is filled in."""
    project: str = ""
    """Before the name of a project; empty: the family has none."""
    file: str = ""
    """Before the name of each file of a project."""
    spaced: bool = False
    """The tokenizer puts a space before any text, which a suffix must not have."""


FIM_FAMILIES = (
    FimNames("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
             ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>"),
             "<|repo_name|>", "<|file_sep|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma
    FimNames("<fim_prefix>", "<fim_suffix>", "<fim_middle>",
             ("<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<|endoftext|>"),
             "<repo_name>", "<file_sep>"),  # StarCoder, StarCoder2, Granite Code
    FimNames("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>", "<|endoftext|>")),  # SantaCoder
    FimNames("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), spaced=True),  # CodeLlama
    FimNames("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>",)),  # noqa: RUF001  DeepSeek
    FimNames("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", ("<|endoftext|>",)),  # GLM
)  # fmt: skip
"""Families by the names of their tokens; the first whose three a tokenizer has is the model's."""
PROJECT, UNNAMED = "project\n", "file"
SNIPPET = "\n\n--- snippet ---\n\n"
"""Before a text of another file, where the family has no token for it; llama-server writes the same."""
SMILE = "☺"
"""A character that merges with no other: what follows it is spelled as in the middle of a text."""


@dataclass(frozen=True, slots=True)
class Fim:
    """Token ids of FimNames in one tokenizer."""

    names: FimNames
    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]
    project: int | None
    file: int | None


def fim_of(server: "Server", name: str) -> Fim:
    """The family of a model. Raises ApiError, which blames the parameter `name`, for a model of none."""
    for names in FIM_FAMILIES:
        three = [token(server, each) for each in (names.prefix, names.suffix, names.middle)]
        if None not in three:
            prefix, suffix, middle = (each for each in three if each is not None)
            ends = tuple(id for each in names.ends if (id := token(server, each)) is not None)
            more = (token(server, names.project), token(server, names.file))
            return Fim(names, prefix, suffix, middle, ends, *more)
    message = (
        f"{name} cannot be served: this model has no tokens to fill in with, such as <|fim_middle|>; leave it out."
    )
    raise ApiError(400, message, param=name)


def fills(server: "Server") -> bool:
    return any(
        all(token(server, each) is not None for each in (names.prefix, names.suffix, names.middle))
        for names in FIM_FAMILIES
    )


def token(server: "Server", text: str) -> int | None:
    """Id of a token that the tokenizer and the model have."""
    tokenizer = server.text.tokenizer
    id = tokenizer.convert_tokens_to_ids(text) if text else None
    if not isinstance(id, int) or not 0 <= id < server.llm.llm.engine.model.vocab_size:
        return None
    return id if tokenizer.convert_ids_to_tokens(id) == text else None


async def filled(
    server: "Server", fim: Fim, before: Sequence[Prompt], behind: str, others: Sequence[tuple[str, str]] = ()
) -> list[list[int]]:
    """Token ids of a prompt for each text of `before`, each with `behind` behind its gap. `others`: (name, text) of
    further files, which come first."""
    texts = [*(each for each in before if isinstance(each, str)), behind, *(text for _, text in others)]
    for each in texts:
        check_length(each, server.text_bound)

    def work() -> list[list[int]]:
        head = server.text.encode("") + project(server, fim, others)
        tail = [fim.suffix, *inner(server, behind, fim.names.spaced), fim.middle]
        parts = [inner(server, each) if isinstance(each, str) else each for each in before]
        return [[*head, fim.prefix, *part, *tail] for part in parts]

    return await server.pools.texts.run(work, sum(map(len, texts)))


def project(server: "Server", fim: Fim, others: Sequence[tuple[str, str]]) -> list[int]:
    """The other files as the family writes a project, up to the file that has the gap."""
    if not others:
        return []
    made = [] if fim.project is None or fim.file is None else [fim.project, *inner(server, PROJECT)]
    for name, text in others:
        if fim.file is None:
            made += inner(server, SNIPPET + text)
        else:
            made += [fim.file, *inner(server, f"{name or UNNAMED}\n{text}")]
    return made if fim.file is None else [*made, fim.file, *inner(server, f"{UNNAMED}\n")]


def inner(server: "Server", text: str, spaced: bool = False) -> list[int]:
    """Token ids of a part of a text, without special tokens; `spaced`: and without the space of a text's beginning."""

    def ids(text: str) -> list[int]:
        return list(server.text.tokenizer.encode(text, add_special_tokens=False))

    anchor = ids(SMILE) if spaced else []
    made = ids(SMILE + text) if spaced else ids(text)
    return made[len(anchor) :] if made[: len(anchor)] == anchor else ids(text)
