"""The keyword arguments of `LLM` and `AsyncLLM`, for type checkers and for TAB: the fields of `Options`."""

from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TypedDict

from paceline.engine.build import Options


class EngineOptions(TypedDict, total=False):
    """Fields of `Options` other than model, draft and drafter; it says what each is and the default."""

    verifier: str
    nodes: int | None
    dtype: str
    quantize: str | None
    draft_quantize: str | None
    kv_dtype: str | None
    device: str
    threads: int | None
    max_model_len: int | None
    chat_template: str | Path | None
    memory: int | str | None
    blocks: int | None
    block_size: int
    max_requests: int
    row_budget: int
    prefix_cache: bool
    weights_cache: bool
    late_weights: bool
    keep_learned: bool
    eviction: str
    overlap: str
    online: float
    length: str
    schedule: str
    order: str
    tbt_target_ms: float | None
    group_size: int | None
    revision: str | None
    token: str | None
    check: bool


def shown() -> Signature:
    """The signature of `LLM`, as `help` and TAB show it: every option with its default."""
    first, *rest = signature(Options).parameters.values()
    return Signature([first, *(p.replace(kind=Parameter.KEYWORD_ONLY) if p.name in EngineOptions.__annotations__ else p
                               for p in rest)])  # fmt: skip
