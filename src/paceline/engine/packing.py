"""A request as bytes: what `Park` gives and `Resume` takes.

magic and version (8) | length of the header (8) | header, JSON | K/V: block by block, in each the groups by name |
SHA-256 of all before (32)

ParkedRequest bytes are input: each length, id and number is looked at before anything of the engine changes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import pairwise
from math import isfinite
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from paceline.cache.blocks import PRIVATE_KEY
from paceline.core import params as wishes
from paceline.core import request as requests
from paceline.core.errors import InputError, PacelineError, RefusalError
from paceline.core.joined import Layout, Stretch, stretch_at
from paceline.core.params import SamplingParams
from paceline.core.request import Request, TokenLogprob

PARKED_MAGIC = b"PACELN\x00\x05"
"""The last byte is the format's version."""
CHECKSUM_BYTES = 32
"""Bytes of the checksum."""
PARKED_FIELDS = (
    "prompt", "output", "seed", "lineage", "offset", "drafter", "verifier", "max_tokens", "key", "extra_key", "round",
    "adapter", "branches", "epochs", "authors", "logprobs", "prompt_logprobs", "stats",
)  # fmt: skip
"""Fields of a request that go on, other than its parameters, its times and where its tokens stand."""
UNPACKED = ("processors", "client")
"""Sampling parameters that stay behind: functions, and who asked here."""
MOST_PARKED_COUNT = 1 << 48
"""No count in a header is larger."""
AGE_ROUNDING_S = 1e-3
"""Rounding of times in seconds."""
LOGPROB_ROUNDING = 1e-3
"""Rounding of a log-probability, which is 0 at most."""
MOST_LINEAGE_PARTS = 1 << 12
"""Parts of a lineage."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What an engine's K/V and texts are made by."""

    model: str
    """Identity of the target."""
    vocab_size: int
    joins: bool
    """Can its texts have branches that were joined?"""


@dataclass(frozen=True, slots=True)
class ParkedRequest:
    """A parked request, checked. `blocks` [block][group]: K/V of the rows from `first` blocks on."""

    fields: dict[str, Any]
    """Fields of `Request`, by name."""
    text: str | None
    """The output as far as it could be shown; None if the engine had no tokenizer."""
    age: float
    """Seconds from the request's arrival until it was parked."""
    waited: float | None
    """Seconds from the request's arrival until its first lease."""
    block: int
    """Tokens of a block there: states are those behind such blocks."""
    first: int
    forms: dict[str, str]
    """{group: name of what its K/V is} of the groups in each block."""
    blocks: list[list[bytes]]

    @property
    def rows(self) -> int:
        """Rows up to the end of the last block, those before the first one included."""
        return (self.first + len(self.blocks)) * self.block


def check_packable(request: Request) -> None:
    """RefusalError for a request with processors."""
    if request.params.processors:
        raise RefusalError("A request with processors cannot be parked: they are functions of this process.")


def pack(
    request: Request,
    origin: Origin,
    now: float,
    text: str | None,
    block: int,
    forms: Mapping[str, str],
    blocks: Sequence[Sequence[bytes]],
    first: int = 0,
) -> bytes:
    """`forms`: of the groups in each of `blocks`, sorted by name. RefusalError for what cannot be packed."""
    check_packable(request)
    params = {f.name: getattr(request.params, f.name) for f in fields(SamplingParams) if f.name not in UNPACKED}
    params["logit_bias"] = None if request.params.logit_bias is None else dict(request.params.logit_bias)
    header = {
        "model": origin.model,
        "request": {name: getattr(request, name) for name in PARKED_FIELDS},
        "params": params,
        "eos": sorted(request.eos),
        "layout": request.layout,
        "text": text,
        "age": now - request.arrival,
        "waited": None if request.admitted is None else request.admitted - request.arrival,
        "block": block,
        "first": first,
        "blocks": len(blocks),
        "groups": [[name, form, len(blocks[0][i]) if blocks else 0] for i, (name, form) in enumerate(forms.items())],
    }
    return sealed(header, [part for parts in blocks for part in parts])


def sealed(header: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    """Header and K/V with magic, length and checksum."""
    text = json.dumps(header, default=asdict).encode()
    body = b"".join([PARKED_MAGIC, len(text).to_bytes(8, "little"), text, *parts])
    return body + hashlib.sha256(body).digest()


def opened(packed: bytes, what: str = "parked request") -> tuple[bytes, memoryview]:
    """(header, K/V) of what `sealed` gave. InputError for other bytes, another version, and any damage."""
    if packed[:7] != PARKED_MAGIC[:7]:
        raise InputError(f"These bytes are not a {what}; give what `Park` or `Peek` returned.")
    if packed[7:8] != PARKED_MAGIC[7:]:
        version = packed[7] if len(packed) > 7 else "?"
        raise InputError(
            f"The {what} has format {version}, but this version reads {PARKED_MAGIC[7]}; send the prompt again."
        )
    end = 16 + int.from_bytes(packed[8:16], "little")
    if len(packed) < 16 + CHECKSUM_BYTES or end > len(packed) - CHECKSUM_BYTES:
        raise InputError(f"The {what} ends early: its {len(packed)} bytes were cut; send it again.")
    view = memoryview(packed)
    if hashlib.sha256(view[:-CHECKSUM_BYTES]).digest() != view[-CHECKSUM_BYTES:]:
        raise InputError(f"The {what} is damaged: its checksum differs; send it again.")
    return packed[16:end], view[end:-CHECKSUM_BYTES]


def imported_key(packed: bytes) -> str:
    """Under what the K/V of these bytes is named: a request of the same bytes alone finds it."""
    return f"{PRIVATE_KEY}{hashlib.sha256(packed).hexdigest()}"


def unpack(packed: bytes, origin: Origin) -> ParkedRequest:
    """InputError for bytes that are no parked request, one of another model or version, or one that is damaged or
    contradicts itself."""
    text, kv = opened(packed)
    header = parsed(text, header_type(), "parked request")
    try:
        if header.model != origin.model:
            raise InputError(
                "The request was parked by an engine of another model, or of other dtypes or positions; resume it "
                "where the model is the same."
            )
        groups = [(str(name), str(form), int(size)) for name, form, size in header.groups]
        length = len(header.request.prompt) + len(header.request.output)
        blocks = taken(kv, [size for _, _, size in groups], header.blocks, header.block, length)
        _check(len({name for name, _, _ in groups}) == len(groups), "a group comes twice")
        kept: dict[str, Any] = {name: getattr(header.request, name) for name in PARKED_FIELDS}
        asked = {name: getattr(header.params, name) for name in type(header.params).model_fields}
        params = SamplingParams(**{name: frozen(value) for name, value in asked.items()})
        layout = tuple(Stretch(*stretch) for stretch in header.layout)
        kept |= {"params": params, "eos": frozenset(header.eos), "layout": layout}
        parked = ParkedRequest(
            kept, header.text, header.age, header.waited, header.block, header.first,
            {name: form for name, form, _ in groups}, blocks,
        )  # fmt: skip
        check_request(parked, origin)
    except (TypeError, ValueError, OverflowError, PacelineError) as error:
        if isinstance(error, InputError) and str(error).startswith("The request was parked"):
            raise
        raise InputError(f"The parked request cannot be used: {str(error).rstrip('.')}; park it again.") from None
    return parked


def taken(kv: memoryview, sizes: Sequence[int], count: int, block: int, length: int) -> list[list[bytes]]:
    """[block][group] of K/V in groups of these sizes, of blocks of `block` tokens in a text of `length`. InputError
    where the lengths do not add up; nothing is allocated before."""
    _check(block >= 1, "its blocks have no token")
    _check(0 <= count <= length // block, f"it has K/V of {count} blocks of {block} rows for a text of {length} tokens")
    _check(not count or (len(sizes) > 0 and min(sizes) > 0), "its blocks have a group without K/V")
    if sum(sizes) * count != len(kv):
        raise InputError(f"it has {len(kv)} bytes of K/V, but {count} blocks of {sum(sizes)} bytes are announced")
    at, blocks = 0, list[list[bytes]]()
    for _ in range(count):
        parts = []
        for size in sizes:
            parts.append(bytes(kv[at : at + size]))
            at += size
        blocks.append(parts)
    return blocks


def check_request(parked: ParkedRequest, origin: Origin) -> None:
    """InputError unless every id is in the vocabulary, and lengths, counts and places agree."""
    f, params = parked.fields, parked.fields["params"]
    prompt, output, layout = f["prompt"], f["output"], f["layout"]
    for name, tokens in (("prompt", prompt), ("output", output), ("eos", f["eos"])):
        check_ids(name, tokens, origin.vocab_size)
    _check(len(prompt) > 0, "its prompt is empty")
    _check(len(f["authors"]) == len(output), "it does not say of each token who drafted it")
    counts = ("round", "branches", "epochs", "max_tokens")
    _check(all(0 <= f[name] <= MOST_PARKED_COUNT for name in counts), f"one of {', '.join(counts)} is out of range")
    _check(abs(f["offset"]) <= MOST_PARKED_COUNT and 0 <= f["seed"] < 1 << 64, "its seed or offset is out of range")
    lineage = f["lineage"]
    _check(
        len(lineage) <= MOST_LINEAGE_PARTS and all(0 <= p <= MOST_PARKED_COUNT for p in lineage),
        "its lineage is out of range",
    )
    for age in (parked.age, parked.waited or 0.0):
        _check(isfinite(age) and 0 <= age <= MOST_PARKED_COUNT, "its age is out of range")
    least_age = (parked.waited or 0.0) - AGE_ROUNDING_S
    _check(parked.age >= least_age, "it waited for longer than its age")
    stats = f["stats"]
    for name in ("passes", "generated", "preempted", "cached"):
        _check(0 <= getattr(stats, name) <= MOST_PARKED_COUNT, f"its statistics have {name} out of range")
    _check(
        all(0 <= count <= MOST_PARKED_COUNT for count in (*stats.offered, *stats.kept)),
        "its statistics are out of range",
    )
    judged = len(stats.kept) <= len(stats.offered) and all(a <= b for a, b in zip(stats.kept, stats.offered))
    _check(judged, "its statistics have more drafted tokens kept than offered")
    _check(stats.cached <= len(prompt) + len(output), "its statistics have more tokens cached than it has")
    check_logprobs("logprobs", f["logprobs"], output, params.logprobs is not None, origin.vocab_size)
    told = f["prompt_logprobs"]
    _check(not told or told[0] is None, "its first prompt token has a log-probability")
    _check(len(told) <= len(prompt), "it has more prompt log-probabilities than prompt tokens")
    check_logprobs("prompt_logprobs", told[1:], prompt[1 : len(told)], params.prompt_logprobs is not None,
                   origin.vocab_size)  # fmt: skip
    check_layout(layout, len(prompt) + len(output), origin.joins)
    shift = layout[-1].shift if layout else 0
    _check(f["max_tokens"] - len(output) + shift >= 1, "its output has no token left to draw")
    _check(1 <= parked.block <= MOST_PARKED_COUNT, "its blocks have no token")
    length = len(prompt) + len(output)
    fits = 0 <= parked.first <= MOST_PARKED_COUNT and parked.rows < length
    _check(fits, f"it has K/V of {parked.rows} rows for a text of {length} tokens")


def check_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """InputError for a token id outside the vocabulary."""
    bad = next((token for token in tokens if not 0 <= token < vocab_size), None)
    _check(bad is None, f"{name} has token id {bad}, but this model's ids are 0 to {vocab_size - 1}")


def check_logprobs(
    name: str, entries: Sequence[TokenLogprob | None], tokens: Sequence[int], wanted: bool, vocab_size: int
) -> None:
    """InputError unless there is an entry for each token where they were asked for, and else none."""
    _check(len(entries) == (len(tokens) if wanted else 0), f"it has {len(entries)} {name} for {len(tokens)} tokens")
    for entry, token in zip(entries, tokens):
        if entry is None or entry.token != token:
            raise InputError(f"its {name} are of other tokens than its text")
        check_ids(name, [*entry.top], vocab_size)
        values = (entry.logprob, *entry.top.values())
        _check(all(value <= LOGPROB_ROUNDING for value in values), f"its {name} are no logarithms of probabilities")
        _check(name != "logprobs" or isfinite(entry.logprob), f"its {name} have a token that cannot be drawn")


def check_layout(layout: Layout, length: int, joins: bool, whole: bool = True) -> None:
    """InputError unless stretches follow one another within the text, and hide only places before them. `whole`: the
    text may end here, inside no branch."""
    _check(joins or not layout, "branches were joined in it, which this model cannot do")
    starts = [stretch.start for stretch in layout]
    ordered = all(a < b for a, b in pairwise(starts))
    _check(ordered and all(0 <= s <= length for s in starts), "its stretches are not in order")
    for stretch in layout:
        _check(0 <= stretch.shift <= stretch.start, "a stretch stands before the beginning")
        ends = [place for pair in stretch.hidden for place in pair]
        inside = all(0 <= a < b <= stretch.start for a, b in stretch.hidden)
        _check(inside and ends == sorted(ends), "a stretch hides what is not before it")
    _check(not whole or not layout or not stretch_at(layout, length).hidden, "its last stretch hides something")


def parsed(text: bytes, kind: "TypeAdapter[Any]", what: str) -> Any:
    """The header by its type. InputError, which names the field, for one that is of another."""
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"])) or "it"
        raise InputError(f"The {what} cannot be read ({at}: {first['msg']}); send it again.") from None
    except (PacelineError, RecursionError) as error:
        raise InputError(f"The {what} cannot be read ({str(error).rstrip('.')}); send it again.") from None


def stretch_type() -> Any:
    """What a layout is in a header."""
    return tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]


@cache
def header_type() -> "TypeAdapter[Any]":
    """The type of a parked request's header: the kept fields of `Request`, all of `SamplingParams` but `UNPACKED`."""
    config = ConfigDict(extra="forbid", strict=True)
    space = {**vars(wishes), "Tensor": Any}
    own, params = get_type_hints(Request, vars(requests)), get_type_hints(SamplingParams, space)
    kept: dict[str, Any] = {name: (own[name], ...) for name in PARKED_FIELDS}
    asked: dict[str, Any] = {f.name: (params[f.name], ...) for f in fields(SamplingParams) if f.name not in UNPACKED}
    groups = list[tuple[str, str, int]]
    model: Callable[..., Any] = create_model
    header = model(
        "Header", __config__=config, model=(str, ...), request=(model("Kept", __config__=config, **kept), ...),
        params=(model("Asked", __config__=config, **asked), ...), eos=(list[int], ...),
        layout=(stretch_type(), ...), text=(str | None, ...), age=(float, ...), waited=(float | None, ...),
        block=(int, ...), first=(int, ...), blocks=(int, ...), groups=(groups, ...),
    )  # fmt: skip
    return TypeAdapter(header)


def frozen(value: Any) -> Any:
    """JSON has lists in place of tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise InputError(complaint)
