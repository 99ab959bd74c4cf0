"""What the table has: every method with its settings, its data and its learning rate; and the papers' ratios, whose
models are a hundred times larger."""

from dataclasses import dataclass, field
from typing import Any

HEAD, DRAFT = "head", "draft"


@dataclass(frozen=True)
class Entry:
    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    lr: float = 2e-3
    drafter: str = ""
    """Who serves it; the method's name where empty."""
    begins: str = ""
    """The entry, or `draft` (the pair's own), whose model it begins with: draft models only."""
    data: str = "answers"
    """`answers` of the target; `maths`, `both`: the texts of the data as they are."""
    kind: str = HEAD

    @property
    def serves(self) -> str:
        return self.drafter or self.method


STUDENT = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 688}
"""The shape of the pair's own draft model."""
ENTRIES = (
    Entry("medusa", "medusa"),
    Entry("hydra", "hydra"),
    Entry("hydra++", "hydra", {"prefix": True, "layers": 4}),
    Entry("clover-2", "clover"),
    Entry("eagle-1", "eagle3", {"fused": False}),
    Entry("eagle-3", "eagle3"),
    Entry("falcon-0", "falcon", {"glance": 0.0}),
    Entry("falcon", "falcon"),
    Entry("longspec", "longspec"),
    Entry("ppd", "ppd", lr=1e-2),
    Entry("distillspec", "distillspec", lr=3e-4, drafter="model", begins="draft", kind=DRAFT),
    Entry("s2d", "s2d", {"exits": "1,2"}, lr=3e-4, begins="draft", kind=DRAFT),
    Entry("fast-pt", "fastdraft", STUDENT, drafter="model", data="maths", kind=DRAFT),
    Entry("fast-cp", "fastdraft", lr=1e-3, drafter="model", begins="fast-pt", data="both", kind=DRAFT),
    Entry("fast-ft", "fastdraft", lr=1e-3, drafter="model", begins="fast-cp", kind=DRAFT),
)
RATIOS = (
    ("hydra", "medusa", "tau", 1.16),
    ("hydra++", "medusa", "tau", 1.42),
    ("clover-2", "eagle-1", "tau", 1.04),
    ("eagle-3", "eagle-1", "tau", 1.57),
    ("falcon", "falcon-0", "tau", 1.20),
    ("distillspec", "draft", "tau", 1.10),
    ("fast-ft", "fast-pt", "code", 2.4),
    ("s2d", "draft", "tau", 1.0),
)
"""One, another, of what (`tau` over all prompts, `code`: drafts accepted on code), and the paper's ratio."""
