"""Reported log-probabilities.

Of a drawn token: log p after *every* processor, the very law it was drawn from; for greedy requests the log-softmax
of the processed logits. Of a prompt token: the log-softmax of the raw logits.
"""

from collections.abc import Sequence

from torch import Tensor

from paceline.core.request import Request, TokenLogprob
from paceline.sample.filters import Warp


def token_logprobs(rows: Sequence[tuple[Request, object]], scores: Tensor, tokens: Sequence[int]) -> list[TokenLogprob]:
    """What to report of tokens[i], drawn from row i of `Sampler.scores` [L, V], for requests that ask (`logprobs`)."""
    greedy = [i for i, (request, _) in enumerate(rows) if Warp.of(request.params).greedy]
    log_p = scores.clone()
    log_p[greedy] = scores[greedy].log_softmax(-1)
    return report(log_p, tokens, [request.params.logprobs or 0 for request, _ in rows])


def prompt_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """What to report of prompt tokens[i], judged by row i of the raw logits [L, V]."""
    return report(logits.log_softmax(-1), tokens, [top] * len(tokens))


def report(log_p: Tensor, tokens: Sequence[int], top: Sequence[int]) -> list[TokenLogprob]:
    """Entries from log-probabilities [L, V]; tokens that cannot be drawn (-inf) are not listed among the likeliest."""
    if not tokens:
        return []
    own = [log_p[i, token].item() for i, token in enumerate(tokens)]
    best = log_p.topk(min(max(top), log_p.shape[-1]), dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, own[i], {t: v for v, t in zip(values[i][:n], ids[i][:n]) if v > float("-inf")})
        for i, (token, n) in enumerate(zip(tokens, top))
    ]
