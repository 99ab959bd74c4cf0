"""What the table has: every method with its settings, its data and its learning rate; and the papers' ratios, whose
models are a hundred times larger."""

from pathlib import Path
from typing import NamedTuple

from paceline.train.compare import DrafterCandidate

STUDENT = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 688}
"""The shape of the pair's own draft model."""
HEAD_LR = 2e-3


def entries(out: Path) -> tuple[DrafterCandidate, ...]:
    """The candidates; files of data lie in `out`."""
    maths, both = (out / "maths.jsonl",), (out / "maths.jsonl", out / "code.jsonl")
    return (
        DrafterCandidate(name="medusa", method="medusa", lr=HEAD_LR),
        DrafterCandidate(name="hydra", method="hydra", lr=HEAD_LR),
        DrafterCandidate(name="hydra++", method="hydra", settings={"prefix": True, "layers": 4}, lr=HEAD_LR),
        DrafterCandidate(name="clover-2", method="clover", lr=HEAD_LR),
        DrafterCandidate(name="eagle-1", method="eagle3", settings={"fused": False}, lr=HEAD_LR),
        DrafterCandidate(name="eagle-3", method="eagle3", lr=HEAD_LR),
        DrafterCandidate(name="falcon-0", method="falcon", settings={"glance": 0.0}, lr=HEAD_LR),
        DrafterCandidate(name="falcon", method="falcon", lr=HEAD_LR),
        DrafterCandidate(name="longspec", method="longspec", lr=HEAD_LR),
        DrafterCandidate(name="ppd", method="ppd", lr=1e-2),
        DrafterCandidate(
            name="fast-pt", method="fastdraft", settings=STUDENT, lr=2e-3, data=maths, answers=False, head=False
        ),
        DrafterCandidate(name="fast-cp", method="fastdraft", lr=1e-3, begins="fast-pt", data=both, answers=False),
        DrafterCandidate(name="fast-ft", method="fastdraft", lr=1e-3, begins="fast-cp", answers=True),
        DrafterCandidate(name="distillspec", method="distillspec", lr=3e-4, begins="fast-cp", answers=True),
        DrafterCandidate(name="s2d", method="s2d", settings={"exits": "1,2"}, lr=3e-4, begins="draft", answers=True),
    )


class PaperRatio(NamedTuple):
    one: str
    other: str
    kind: str
    """`tau`: tokens a pass over all prompts; `code`: drafts accepted on code."""
    paper: float


RATIOS = (
    PaperRatio("hydra", "medusa", "tau", 1.16),
    PaperRatio("hydra++", "hydra", "tau", 1.22),
    PaperRatio("clover-2", "eagle-1", "tau", 1.04),
    PaperRatio("eagle-3", "eagle-1", "tau", 1.57),
    PaperRatio("falcon", "falcon-0", "tau", 1.20),
    PaperRatio("ppd", "medusa", "tau", 1.06),
    PaperRatio("distillspec", "fast-cp", "tau", 1.10),
    PaperRatio("fast-cp", "fast-pt", "code", 2.45),
    PaperRatio("fast-ft", "fast-cp", "tau", 1.21),
    PaperRatio("s2d", "model", "tau", 1.0),
)
