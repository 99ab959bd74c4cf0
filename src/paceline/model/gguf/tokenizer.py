"""The tokenizer that a GGUF file holds, as transformers would have it: byte-level pairs, or SentencePiece's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.model.gguf.header import Header
from paceline.model.gguf.pretokenizers import PRE_TOKENIZERS
from paceline.model.unindexed import submodules_alone

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""`tokenizer.ggml.token_type`."""
SPECIAL_TOKEN_KEYS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
"""GGUF's names of special tokens, and transformers'."""
END_KEYS = ("eos", "eot", "eom")
END_TOKENS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "[EOT]",
     "[EOS]", "<|eom_id|>", "<|END_OF_TURN_TOKEN|>", "<|endofturn|>", "<turn|>", "<|return|>", "<|end_of_turn|>")
)  # fmt: skip
"""Control tokens that end a text in every model that has them, whatever the file names as its end."""
SPACE_MARK = "▁"
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
TOOL_END = "<|tool_response>"
"""What ends a call in Gemma 4, where converters have it as a user's token."""
READ_TOKEN_KEYS = frozenset(("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token",
                             "add_eos_token", "add_space_prefix", "eos_token_ids", "suppress_tokens"))  # fmt: skip
SILENT_TOKEN_VALUES: dict[str, tuple[Any, ...]] = {
    "add_sep_token": (False,), "remove_extra_whitespaces": (False,), "token_type_count": (1, 2),
}  # fmt: skip
"""Values that say nothing of a text in keys of other kinds of tokenizers."""
GGUF_SAMPLING_KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
            "penalty_repeat": "repetition_penalty"}  # fmt: skip
"""`general.sampling.*`, and generation_config.json's names."""


class Vocabulary:
    """What a file says of its tokens, checked: every later step may trust ids and lengths."""

    def __init__(self, header: Header) -> None:
        self.path, self.metadata = header.path, header.metadata
        self.kind: str = self.get("model", str)
        self.tokens: list[str] = self.get("tokens", list)
        size = len(self.tokens)
        if len(set(self.tokens)) != size:
            raise self.wrong("tokens", "names one token twice")
        self.types = self.numbers("token_type", NORMAL)
        self.special = {word: self.id(word) for word in (*SPECIAL_TOKEN_KEYS, *END_KEYS)}
        self.refuse_unread()

    def refuse_unread(self) -> None:
        """CheckpointError for a key of the tokenizer that is not read and may change how text becomes tokens."""
        prefix = "tokenizer.ggml."
        for name, value in self.metadata.items():
            key = name.removeprefix(prefix)
            if key == name or key in READ_TOKEN_KEYS or key.endswith("_token_id"):
                continue
            empty = isinstance(value, np.ndarray | list) and not len(value)
            if not empty and not any(value is it or value == it for it in SILENT_TOKEN_VALUES.get(key, ())):
                raise self.wrong(key, f"is {str(value)[:40]}, a key that is not read and may change the text")

    def wrong(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"tokenizer.ggml.{key} in {self.path} {what}; convert the model again.")

    def get(self, key: str, kind: type[Any], default: Any = None) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind) or (kind is list and not all(isinstance(item, str) for item in value)):
            raise self.wrong(key, "is missing" if value is None else f"is no {kind.__name__}")
        return value

    def numbers(self, key: str, default: int) -> list[Any]:
        """One for each token."""
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            return [default] * len(self.tokens)
        if not isinstance(found, np.ndarray) or len(found) != len(self.tokens):
            raise self.wrong(key, f"does not hold a number for each of the {len(self.tokens)} tokens")
        return list(found.tolist())

    def id(self, word: str) -> int | None:
        key = f"{word}_token_id"
        found = self.metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < len(self.tokens):
            if found in (-1, 2**32 - 1):  # how some converters write "none"
                return None
            raise self.wrong(key, f"is {str(found)[:40]}, which is not an id of its {len(self.tokens)} tokens")
        return found

    def says(self, key: str, default: bool) -> bool:
        found: bool = self.get(key, bool, default)
        return found

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a text: of the sequence, of a turn, of a message to a tool."""
        named = {found for word in END_KEYS if (found := self.special[word]) is not None}
        control = {at for at, kind in enumerate(self.types) if kind == CONTROL}
        if self.kind == "gemma4":
            named |= {at for at, token in enumerate(self.tokens) if token == TOOL_END}
        more = self.metadata.get("tokenizer.ggml.eos_token_ids")
        if more is not None:
            sound = isinstance(more, np.ndarray) and more.dtype.kind in "iu"
            if not sound or not all(0 <= at < len(self.tokens) for at in more.tolist()):
                raise self.wrong(
                    "eos_token_ids", f"is {str(more)[:40]}, no list of ids of its {len(self.tokens)} tokens"
                )
            named |= set(more.tolist())
        return frozenset(named | {at for at in control if self.tokens[at] in END_TOKENS})


def tokenizer_of(header: Header) -> Any:
    """A fast tokenizer of transformers. Raises CheckpointError for a kind or a pre-tokenizer that is not known."""
    words = Vocabulary(header)
    if words.kind not in TOKENIZER_MAKERS:
        raise words.wrong("model", f"is {words.kind[:40]!r}, but known are {', '.join(TOKENIZER_MAKERS)}")
    try:
        backend, begins = TOKENIZER_MAKERS[words.kind](words)
    except CheckpointError:
        raise
    except Exception as error:  # what the library raises for merges of tokens that are not there
        raise words.wrong("merges", f"does not fit its tokens ({' '.join(str(error).split())[:100]})") from None
    add_special(backend, words)
    backend.post_processor = framed(words, begins)
    submodules_alone()
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    named = {
        name: words.tokens[at] for word, name in SPECIAL_TOKEN_KEYS.items() if (at := words.special[word]) is not None
    }
    backend.__deepcopy__ = lambda memo: backend  # it is copied although it has one owner: a third of a second
    made = make(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    del backend.__deepcopy__
    made.chat_template = templates(words)
    return made


def templates(words: Vocabulary) -> Any:
    """The chat template; if there are several, all of them by name."""
    key = "tokenizer.chat_template"
    found = {name.removeprefix(key): text for name, text in words.metadata.items() if name.startswith(key + ".")}
    default = words.metadata.get(key)
    if default is not None and not isinstance(default, str):
        raise CheckpointError(f"{key} in {words.path} is not a text; convert the model again.")
    if not found or default is None:
        return default
    return {"default": default, **{name.removeprefix("."): text for name, text in found.items()}}


def byte_pairs(words: Vocabulary) -> tuple[Any, bool]:
    """A byte-level tokenizer (GPT-2's), and whether it begins texts with bos where the file does not say."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = words.get("pre", str)
    if name not in PRE_TOKENIZERS:
        raise words.wrong("pre", f"is {name[:40]!r}, a pre-tokenizer that is not known ({', '.join(PRE_TOKENIZERS)})")
    cut = PRE_TOKENIZERS[name]
    merges = pairs_of(words)
    vocabulary = {token: i for i, token in enumerate(words.tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.whole, fuse_unk=False))
    if cut.composed:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    spaced = words.says("add_space_prefix", False)
    last = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    backend.decoder = decoders.ByteLevel()
    return backend, name in ("tekken", "llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral")


def pairs_of(words: Vocabulary) -> list[tuple[str, str]]:
    """What is merged, the first pair first."""
    merges = [line.partition(" ") for line in words.get("merges", list)]
    if bad := next(
        (left + space + right for left, space, right in merges if not left or not right or " " in right), None
    ):
        raise words.wrong("merges", f"has {bad[:40]!r}, which is not a pair")
    return [(left, right) for left, _, right in merges]


def sentence_pieces(words: Vocabulary) -> tuple[Any, bool]:
    """SentencePiece's pairs (llama 2, mistral, gemma): the scores say which merge comes first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: i for i, token in enumerate(words.tokens)}
    scores = words.numbers("scores", 0)
    unknown = words.special["unknown"]
    model = models.BPE(
        vocabulary,
        merges_of(vocabulary, scores, words.types),
        unk_token=None if unknown is None else words.tokens[unknown],
        fuse_unk=True,
        byte_fallback=BYTE in words.types,
    )
    backend = Tokenizer(model)
    spaced = words.says("add_space_prefix", True)
    replaced = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), replaced]) if spaced else replaced
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if spaced else steps)
    return backend, True


def merges_of(vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best score first, then by the ids of the two."""
    found = []
    for token, at in vocabulary.items():
        if types[at] not in (NORMAL, USER, UNUSED):
            continue
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[at], left, right, token[:cut], token[cut:]))
    found.sort(key=lambda merge: merge[:3])
    return [merge[3:] for merge in found]


def marked_pairs(words: Vocabulary) -> tuple[Any, bool]:
    """Pairs of characters with SentencePiece's mark for spaces, merged in the order of a list (Gemma 4)."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = pairs_of(words)
    unknown = words.special["unknown"]
    backend = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(words.tokens)},
            merges,
            unk_token=None if unknown is None else words.tokens[unknown],
            fuse_unk=True,
            byte_fallback=any(BYTE_TOKEN.fullmatch(token) for token in words.tokens),
        )
    )
    spaced = words.says("add_space_prefix", False)
    replaced = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), replaced]) if spaced else replaced
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend, True


TOKENIZER_MAKERS = {"gpt2": byte_pairs, "llama": sentence_pieces, "gemma4": marked_pairs}


def add_special(backend: Any, words: Vocabulary) -> None:
    """Control tokens are special; the user's own are found whole in any text, as text."""
    from tokenizers import AddedToken

    special = {at for at in words.special.values() if at is not None}
    special |= {at for at, kind in enumerate(words.types) if kind in (CONTROL, UNKNOWN)}
    own = [at for at, kind in enumerate(words.types) if kind == USER and at not in special]
    backend.add_special_tokens([AddedToken(words.tokens[at], normalized=False) for at in sorted(special)])
    backend.add_tokens([AddedToken(words.tokens[at], normalized=False, special=False) for at in own])


def framed(words: Vocabulary, begins: bool) -> Any:
    """What encoding puts before and behind a text."""
    from tokenizers import processors

    bos, eos = words.special["bos"], words.special["eos"]
    before = bos if bos is not None and words.says("add_bos_token", begins) else None
    behind = eos if eos is not None and words.says("add_eos_token", False) else None
    level = [processors.ByteLevel(trim_offsets=False)] if words.kind == "gpt2" else []
    if before is None and behind is None:
        return level[0] if level else None
    names = {words.tokens[at]: at for at in (before, behind) if at is not None}
    single = [
        *([] if before is None else [words.tokens[before]]), "$A", *([] if behind is None else [words.tokens[behind]])
    ]  # fmt: skip
    template = processors.TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=list(names.items()))
    return processors.Sequence([*level, template])


def defaults_of(header: Header) -> dict[str, Any]:
    """What generation_config.json would say of sampling."""
    found = {name: header.metadata.get(f"general.sampling.{key}") for key, name in GGUF_SAMPLING_KEYS.items()}
    numbers: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, int | float)}
    if (never := header.metadata.get("tokenizer.ggml.suppress_tokens")) is not None:
        numbers["suppress_tokens"] = never.tolist() if isinstance(never, np.ndarray) else never
    return numbers
