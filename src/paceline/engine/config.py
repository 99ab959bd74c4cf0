"""What an engine is made of, and where its time goes."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timer:
    """Seconds spent, by part; `step` is the whole."""

    step: float = 0.0
    target: float = 0.0
    draft: float = 0.0
    sample: float = 0.0
    steps: int = 0


@dataclass(slots=True)
class EngineConfig:
    """Settings of an engine other than its models, in bytes, rows and tokens."""

    blocks: int
    block_size: int = 16
    max_requests: int = 64
    """Most requests running at once."""
    row_budget: int = 512
    drafter: str = "none"
    verifier: str = "exact"
    nodes: dict[str, int] = field(default_factory=dict)
    """Default nodes per drafter; missing: the drafter's own."""
    cheap_rows: int | None = None
    row_cost: float = 0.0
    """These two are of `FixedLength`."""
    length: str = "goodput"
    """Policy that decides which drafter drafts how many tokens: a name in `plan.POLICIES`."""
    prefix_cache: bool = True
    eviction: str = "lru"
    schedule: str = "chunked"
    order: str = "fcfs"
    tbt_target_ms: float | None = None
    """Maximum predicted step time while a request decodes; None: `row_budget` alone limits it."""
    patience_ms: float = 30.0
    """Maximum time of a step of several passes, which are possible if there are no drafts or drafts need no Python; 0:
    each pass is a step."""
    group_size: int | None = None
    """Most requests that decode in a step, of one shape where possible (EXSPEC); None: all."""
    overlap: str = "none"
    """How the target's pass and what is drafted meanwhile share the machine: a name of engine/placement.py."""
    remember: int = 1 << 28
    """Bytes for what drafters remember of past texts."""
    check: bool = False
    """Run `check_integrity` after every step."""

    @property
    def patience(self) -> float:
        """`patience_ms`, or `tbt_target_ms` where that is less, in seconds."""
        return min(self.patience_ms, self.tbt_target_ms or self.patience_ms) / 1e3
