"""What an engine is made of, and where its time goes."""

from dataclasses import dataclass, field, fields
from typing import Any

from paceline.engine.options import StepOptions

PATIENCE_MS = 30.0


@dataclass(slots=True)
class Timer:
    """Seconds spent, by part; `step` is the whole."""

    step: float = 0.0
    target: float = 0.0
    draft: float = 0.0
    sample: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class EngineConfig(StepOptions):
    """Settings of an engine other than its models: the options of its steps, and what was found out for it."""

    blocks: int
    drafter: str = "none"
    nodes: dict[str, int] = field(default_factory=dict)
    """Default nodes per drafter; missing: the drafter's own."""
    cheap_rows: int | None = None
    """That of `FixedLength`."""
    patience_ms: float = PATIENCE_MS
    """Maximum time of a step of several passes, which are possible if there are no drafts or drafts need no Python; 0:
    each pass is a step."""
    draft_rows: int | None = None
    """Most drafted rows of a step, of all requests together; None: as many as the step has."""
    snapshots: int | None = None
    """Most states of texts that are kept for others to go on from; None: one for each block."""
    remember: int = 1 << 28
    """Bytes for what drafters remember of past texts."""
    settings: dict[str, float | str] = field(default_factory=dict)
    """What was set of drafters: {DRAFTER.NAME: value}."""

    @classmethod
    def of(cls, options: StepOptions, **found: Any) -> "EngineConfig":
        """The options of the steps as they were given, unless `found` has another value."""
        return cls(**{f.name: getattr(options, f.name) for f in fields(StepOptions)} | found)

    @property
    def patience(self) -> float:
        """`patience_ms`, or `tbt_target_ms` where that is less, in seconds."""
        return self.patience_of(self, self.patience_ms)

    @staticmethod
    def patience_of(options: StepOptions, most_ms: float = PATIENCE_MS) -> float:
        """As of an engine with these options, in seconds."""
        return min(most_ms, options.tbt_target_ms or most_ms) / 1e3
