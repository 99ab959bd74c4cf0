"""The keyword arguments of `LLM` and `AsyncLLM`, for editors and type checkers: `Options` without its first three."""

from typing import TypedDict


class EngineOptions(TypedDict, total=False):
    """As `Options` (build.py), which says what each does and has the defaults."""

    verifier: str
    nodes: int | None
    dtype: str
    quantize: str | None
    device: str
    threads: int | None
    max_model_len: int | None
    memory: int | str | None
    blocks: int | None
    block_size: int
    max_requests: int
    row_budget: int
    prefix_cache: bool
    eviction: str
    schedule: str
    order: str
    tbt_target_ms: float | None
    group_size: int | None
    revision: str | None
    token: str | None
    check: bool
