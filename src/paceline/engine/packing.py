"""A request as bytes: what `Park` gives and `Resume` takes.

magic (8) | length of the header (8) | header, JSON | K/V of each group, one behind the other
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.core.component import Component
from paceline.core.errors import InputError, RefusalError
from paceline.core.grammar import Grammar
from paceline.core.joined import Layout, Stretch
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.components import stateful

PARKED_MAGIC = b"PACELN\x00\x03"
"""The last byte is the format's version."""
PARKED_FIELDS = (
    "prompt", "output", "seed", "lineage", "offset", "drafter", "verifier", "max_tokens", "key", "round", "branches",
    "epochs", "authors",
)  # fmt: skip
"""Fields of a request that are kept, apart from its parameters."""


@dataclass(frozen=True, slots=True)
class ParkedRequest:
    """A parked request. `rows`: those that have K/V here; `kv` {group: bytes}."""

    fields: dict[str, Any]
    params: SamplingParams
    rows: int
    layout: Layout
    kv: dict[str, bytes]
    block: int
    """Tokens of a block there: states are those behind such blocks."""


def pack(
    request: Request, rows: int, kv: Mapping[str, bytes], components: Mapping[str, Component], block: int
) -> bytes:
    """RefusalError for a request with processors, which are functions of this process."""
    if request.params.processors:
        raise RefusalError("A request with processors cannot be parked: they are functions of this process.")
    header = {
        "model": model_of(components),
        "request": {name: getattr(request, name) for name in PARKED_FIELDS},
        "params": asdict(request.params),
        "rows": rows,
        "block": block,
        "layout": request.layout,
        "kv": {group: len(part) for group, part in kv.items()},
    }
    text = json.dumps(header).encode()
    return b"".join([PARKED_MAGIC, len(text).to_bytes(8, "little"), text, *kv.values()])


def unpack(packed: bytes, components: Mapping[str, Component]) -> ParkedRequest:
    """InputError for bytes that are no parked request, or one of another model or version."""
    if packed[:7] != PARKED_MAGIC[:7]:
        raise InputError("These bytes are not a parked request; give what `Park` returned.")
    if packed[:8] != PARKED_MAGIC:
        raise InputError(f"The parked request has format {packed[7]}, but this version reads {PARKED_MAGIC[7]}.")
    end = 16 + int.from_bytes(packed[8:16], "little")
    try:
        header = json.loads(packed[16:end])
        grammar = header["params"].pop("grammar")
        lists = {f.name: header["params"][f.name] for f in fields(SamplingParams) if f.name in header["params"]}
        params = SamplingParams(**{**tuples(lists), "grammar": None if grammar is None else Grammar(**grammar)})
        kv = dict[str, bytes]()
        for group, size in header["kv"].items():
            kv[group], end = packed[end : end + size], end + size
            if len(kv[group]) != size:
                raise InputError("The parked request ends early; its bytes were cut.")
        layout = tuple(Stretch(*frozen(each)) for each in header["layout"])
        made = ParkedRequest(header["request"], params, header["rows"], layout, kv, header["block"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"The parked request cannot be read ({error}).") from None
    if header["model"] != model_of(components):
        raise InputError(
            f"The request was parked by an engine of {header['model']}, but this one has {model_of(components)}."
        )
    return made


def model_of(components: Mapping[str, Component]) -> list[Any]:
    """What must be alike in two engines: sizes of the target, which its K/V depends on."""
    target = components["target"]
    states = {name: it.state_bytes for name, it in stateful(components).items()}
    return [target.vocab_size, target.width, target.kv_bytes_per_token, target.weight_bytes, states]


def tuples(params: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists in place of tuples, and texts in place of the numbers that are keys."""
    out = {name: frozen(value) for name, value in params.items()}
    if out.get("logit_bias"):
        out["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    return out


def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list) else value
