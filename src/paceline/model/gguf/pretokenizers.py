"""Byte-pair pre-tokenizers by the names that GGUF gives them (`tokenizer.ggml.pre`), as their makers wrote them.

Each is a list of patterns: what one matches is a piece of its own for the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACE_PIECES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
THREES = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACE_PIECES}"
ONES = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACE_PIECES}"
MARKS = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACE_PIECES}"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
OTHER_PIECES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACE_PIECES}"
TEKKEN = rf"{CASED % ('', '')}|\p{{N}}|{OTHER_PIECES}"
GPT4O = rf"{CASED % (CONTRACTIONS + '?', CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{OTHER_PIECES}"
SEED = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE_PIECES}"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
CJK = "[一-龥\u3040-ゟ\u30a0-ヿ]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACE_PIECES}"
)
THREES_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
WORD_PIECES = " ?[^(\\s|.,!?…。\uff0c、।\u06d4،)]+"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is cut, and whether a piece that is a token whole stays one (`ignore_merges`)."""

    patterns: Sequence[str]
    whole: bool = False
    composed: bool = False
    """Text is put into Unicode's form NFC first."""


def shared(patterns: Sequence[str], names: str, whole: bool = False, composed: bool = False) -> dict[str, SplitRule]:
    return dict.fromkeys(names.split(), SplitRule(patterns, whole, composed))


PRE_TOKENIZERS: dict[str, SplitRule] = {
    **shared([GPT2], "gpt-2 gpt2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de jina-v2-code a.x-4.0 mellum"),
    **shared([GPT2], "modern-bert roberta-bpe exaone4 mpt olmo jais trillion granite-docling"),
    **shared([DIGIT, GPT2], "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    **shared([THREES], "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", whole=True),
    **shared([THREES], "dbrx smaug-bpe glm4 chatglm-bpe"),
    **shared([ONES], "qwen2 deepseek-r1-qwen", composed=True),
    **shared([ONES], "kormo stablelm2 hunyuan megrez grok-2 solar-open"),
    **shared([MARKS], "qwen35", composed=True),
    **shared([TEKKEN], "tekken", whole=True),
    **shared([GPT4O], "gpt-4o llama4 minimax-m2"),
    **shared([SEED], "seed-coder"),
    **shared([BAILING], "bailingmoe bailingmoe2 llada-moe"),
    **shared([r"\p{N}{1,3}", CJK, DEEPSEEK3], "deepseek-v3 hunyuan-dense joyai-llm"),
    **shared([THREES_FROM_THE_RIGHT, ASIAN, DEEPSEEK3], "afmoe"),
    **shared(["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT], "deepseek-coder"),
    **shared([PUNCTUATION, GPT2, "[0-9][0-9][0-9]"], "falcon"),
    **shared([PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], "default"),
    **shared([WORD_PIECES], "poro-chat bloom gpt3-finnish"),
    **shared([WORD_PIECES, DIGIT], "viking"),
}
