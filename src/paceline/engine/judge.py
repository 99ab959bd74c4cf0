"""Scores for the rows that need them, each request judged by its own rule, log-probabilities on the way out."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.core.component import TARGET, Component
from paceline.core.forest import Forest
from paceline.core.plan import Item
from paceline.core.request import Request, TokenLogprob
from paceline.core.rows import Out, Rows
from paceline.core.verdict import Verdict
from paceline.engine.layout import Layout
from paceline.sample.logprobs import prompt_logprobs, token_logprobs
from paceline.sample.sampler import RowRef, Sampler
from paceline.verify import VERIFIERS, Case, Verifier


class Judge:
    """Applies processors and verifiers to one pass."""

    def __init__(self, sampler: Sampler, components: Mapping[str, Component]) -> None:
        self.sampler, self.components = sampler, components
        self._verifiers: dict[str, Verifier] = {}

    def judge_free(self, request: Request) -> bool:
        """Can several passes run without a judge between them? Only if temperature, filters and rules that the target
        can apply alone make the distribution from the logits and nothing else of a pass is wanted."""
        p, warp = request.params, self.sampler.warp(request)
        told = p.logprobs is not None or p.prompt_logprobs is not None
        able = warp is not None and (warp.rules is None or "rules" in self.components[TARGET].abilities)
        return VERIFIERS.card(request.verifier).runs and not told and able

    def judge(self, items: Sequence[Item], forest: Forest, layout: Layout, out: Out, rows: Rows) -> Verdict:
        """The verdict on every item; next_token None where the text is not complete, -1 where every token was
        masked or the request's own processor failed (its `error` says so)."""
        count = len(items)
        verdict = Verdict([[] for _ in range(count)], [None] * count, [[] for _ in range(count)])
        refs, logits, line = self._refs(items, forest, layout, out)
        if not refs:
            return verdict
        verdict.scores = self.sampler.scores(refs, logits)
        for name in {items[p].verifier for p in layout.roots}:
            places = [p for p in layout.roots if items[p].verifier == name]
            case = Case(
                forest, items, places, layout.roots, layout.children, line, refs, verdict.scores, self.sampler, verdict,
                out.taps, [segment.start for segment in rows.segments],
            )  # fmt: skip
            self._verifier(name).judge(case)
        self._report(items, forest, refs, verdict)
        return verdict

    def _verifier(self, name: str) -> Verifier:
        if name not in self._verifiers:
            self._verifiers[name] = VERIFIERS.get(name)(self.components)
        return self._verifiers[name]

    @staticmethod
    def _refs(
        items: Sequence[Item], forest: Forest, layout: Layout, out: Out
    ) -> tuple[list[RowRef], Tensor, dict[int, int]]:
        """Request and path that each judged row continues, the logits of these rows, and {node: row of those
        logits}."""
        nodes = list(layout.line)
        paths = forest.paths(range(len(forest))) if len(nodes) > len(layout.roots) else {}
        refs = [(items[forest.request[n]].request, paths.get(n, ())) for n in nodes]
        lines = [layout.line[n] for n in nodes]
        if lines == list(range(layout.lines)):  # none shared by twins, none a probe's or a prompt's
            return refs, out.logits, layout.line
        picked = torch.tensor(lines, device=out.logits.device, dtype=torch.int64)
        return refs, out.logits[picked], {n: i for i, n in enumerate(nodes)}

    @staticmethod
    def _report(items: Sequence[Item], forest: Forest, refs: Sequence[RowRef], verdict: Verdict) -> None:
        """Log-probabilities of emitted tokens, for the requests that ask."""
        assert verdict.scores is not None
        rows: list[int] = []
        tokens: list[int] = []
        for place, item in enumerate(items):
            last = verdict.next_token[place]
            if item.request.params.logprobs is None or last is None or last < 0:
                continue
            rows.extend(verdict.score_rows[place])
            tokens.extend([*(forest.token[n] for n in verdict.path[place]), last])
        if rows:
            picked = [refs[r] for r in rows]
            entries = token_logprobs(picked, verdict.scores[rows], tokens)
            for (request, _), entry in zip(picked, entries):
                request.logprobs.append(entry)


def add_prompt_logprobs(items: Sequence[Item], layout: Layout, out: Out) -> None:
    """Extend `request.prompt_logprobs` by the prompt tokens that this pass judged: log p of the raw logits."""
    for place, pairs in layout.prompt_lines.items():
        request = items[place].request
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
        pairs = [(request.length + rank + 1, line) for rank, line in pairs]
        pairs = [(at, line) for at, line in pairs if len(request.prompt_logprobs) <= at < len(request.prompt)]
        if pairs:
            request.prompt_logprobs.extend(_prompt_entries(request, pairs, out))


def _prompt_entries(request: Request, pairs: list[tuple[int, int]], out: Out) -> list[TokenLogprob]:
    logits = out.logits[[line for _, line in pairs]]
    return prompt_logprobs(logits, [request.prompt[at] for at, _ in pairs], request.params.prompt_logprobs or 0)
