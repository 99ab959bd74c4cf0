"""Reported log-probabilities.

Of a drawn token: log p after *every* processor, the very distribution it was drawn from; for greedy requests the
log-softmax of the processed logits. Of a prompt token: the log-softmax of the raw logits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request, TokenLogprob
from paceline.core.warp import Warp
from paceline.sample.chunks import chunks


def token_logprobs(rows: Sequence[tuple[Request, object]], scores: Tensor, tokens: Sequence[int]) -> list[TokenLogprob]:
    """What to report of tokens[i], drawn from row i of `Sampler.scores` [L, V], for requests that ask (`logprobs`)."""
    greedy = torch.tensor([Warp.of(request.params).greedy for request, _ in rows], device=scores.device)
    top = [request.params.logprobs or 0 for request, _ in rows]
    entries: list[TokenLogprob] = []
    for part in chunks(scores):
        log_p = torch.where(greedy[part, None], scores[part].log_softmax(-1), scores[part])
        entries += report(log_p, tokens[part], top[part])
    return entries


def prompt_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """What to report of prompt tokens[i], judged by row i of the raw logits [L, V]."""
    entries: list[TokenLogprob] = []
    for part in chunks(logits):
        entries += report(logits[part].log_softmax(-1), tokens[part], [top] * len(tokens[part]))
    return entries


def report(log_p: Tensor, tokens: Sequence[int], top: Sequence[int]) -> list[TokenLogprob]:
    """Entries from log-probabilities [L, V]; tokens that cannot be drawn (-inf) are not listed among the most
    probable."""
    if not tokens:
        return []
    own = [log_p[i, token].item() for i, token in enumerate(tokens)]
    best = log_p.topk(min(max(top), log_p.shape[-1]), dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, own[i], {t: v for v, t in zip(values[i][:n], ids[i][:n]) if v > float("-inf")})
        for i, (token, n) in enumerate(zip(tokens, top))
    ]
