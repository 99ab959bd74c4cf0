"""`Objective`: what a drafter is trained to minimise, as data: a weighted sum of divergences, with a decay by depth.

With p the target's distribution, q the drafter's, h the target's hidden state and o the drafter's in its place:

    kl        sum p log(p / q)            forward KL; the same gradient as soft cross entropy
    reverse   sum q log(q / p)            reverse KL
    jsd       (KL(p | m) + KL(q | m)) / 2, m = (p + q) / 2
    tvd       sum |p - q| / 2             1 minus the chance that a drawn draft is accepted
    lk        -log(sum min(p, q))         minus the log of that chance
    ce        -log q(token)               hard cross entropy
    smooth    SmoothL1(o, h)              mean over the state's numbers

Sources: sections 2, 12.2 and 12.3 of the methods' papers and code as `speculators` names them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.errors import InputError

TINY = 1e-9


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return forward_kl(log_q, log_p)


def jsd(log_p: Tensor, log_q: Tensor) -> Tensor:
    log_m = torch.logaddexp(log_p, log_q) - torch.log(torch.tensor(2.0))
    return (forward_kl(log_p, log_m) + forward_kl(log_q, log_m)) / 2


def tvd(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


def lk(log_p: Tensor, log_q: Tensor) -> Tensor:
    return -torch.minimum(log_p, log_q).exp().sum(-1).clamp(min=TINY).log()


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": forward_kl, "reverse": reverse_kl, "jsd": jsd, "tvd": tvd, "lk": lk,
}  # fmt: skip
TERMS = (*DIVERGENCES, "ce", "smooth")


@dataclass(frozen=True)
class Objective:
    """Weights of the terms, and what each depth's sum is multiplied by: decay ** depth."""

    terms: Mapping[str, float]
    decay: float = 1.0

    @classmethod
    def parse(cls, text: str, decay: float = 1.0) -> "Objective":
        """From `kl`, or `ce:0.1+kl`. Raises InputError."""
        terms: dict[str, float] = {}
        for part in text.split("+"):
            name, _, weight = part.strip().partition(":")
            try:
                terms[name] = float(weight or 1.0)
            except ValueError:
                raise InputError(f"objective {text!r}: {weight!r} is not a weight; write {name}:0.5.") from None
            if name not in TERMS:
                raise InputError(f"objective {text!r}: {name!r} is not known; known are {', '.join(TERMS)}.")
        return cls(terms, decay)

    def places(
        self, *, teacher: Tensor | None, logits: Tensor | None, token: Tensor, hidden: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """[N]: the sum of the terms at each place. teacher, logits [N, V]; token [N]; hidden, out [N, H]."""
        total = torch.zeros(len(token))
        soft = [name for name in self.terms if name in DIVERGENCES]
        if (soft or "ce" in self.terms) and logits is not None:
            log_q = logits.float().log_softmax(-1)
            log_p = teacher.float().log_softmax(-1) if soft and teacher is not None else log_q
            for name in soft:
                total = total + self.terms[name] * DIVERGENCES[name](log_p, log_q)
            if "ce" in self.terms:
                total = total + self.terms["ce"] * F.nll_loss(log_q, token, reduction="none")
        if "smooth" in self.terms and hidden is not None and out is not None:
            total = total + self.terms["smooth"] * F.smooth_l1_loss(out.float(), hidden, reduction="none").mean(-1)
        return total
