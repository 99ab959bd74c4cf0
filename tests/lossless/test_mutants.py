"""Mutants must die: each is a switch that exists here only, and makes the lossless tests fail.

Numbers are those of the design's list; redraws by content (17) wait for the first feature that could break them; 12
lives in tests/cache.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from paceline.core.component import TARGET
from paceline.core.forest import ROOT, Forest, Role
from paceline.core.params import SamplingParams
from paceline.core.program import Entry
from paceline.core.warp import Warp
from paceline.draft import Ask, swift, tree
from paceline.draft.early_exit import EarlyExit
from paceline.draft.grow import HeadDrafter
from paceline.draft.model import ModelDrafter
from paceline.draft.s2d import Ragged, S2DDrafter
from paceline.draft.swift import Swift
from paceline.draft.tree import TreeDrafter
from paceline.engine import compute, drafters, layout, prune, session
from paceline.engine.compute import Compute
from paceline.engine.judge import Judge
from paceline.engine.session import Session
from paceline.sample.grammar import Parse, Place, Structure
from paceline.sample.sampler import Sampler
from paceline.verify import chain, kseq, rrs, walk
from paceline.verify.exact import Exact
from tests import toy
from tests.lossless.cases import FEATURES, Setting, Wish, check
from tests.lossless.test_law import law_setting, p_of_a_mutant, worst_p
from tests.toy import Toy


def shared_noise_under_chain(patch: MonkeyPatch) -> None:
    """1: the residual is drawn with the very noise that drew the draft."""

    def draw(p: torch.Tensor, request: Any, depth: int) -> int:
        key = walk.keys_tensor([request.draft_noise.key(request.index(depth), request.round, 0)])
        return int((torch.log(p) + walk.gumbel(key, torch.arange(p.shape[0]))[0]).argmax())

    patch.setattr(chain, "draw", draw)


def residual_is_p(patch: MonkeyPatch) -> None:
    """2"""
    patch.setattr(chain, "residual", lambda p, q, rejected: p)


def bonus_by_argmax(patch: MonkeyPatch) -> None:
    """3"""
    original = chain.draw

    def draw(p: torch.Tensor, request: Any, depth: int) -> int:
        return int(p.argmax()) if depth == 2 else original(p, request, depth)

    patch.setattr(chain, "draw", draw)


def replayed_draft_noise(patch: MonkeyPatch) -> None:
    """11: every round drafts with the same noise rows."""
    patch.setattr(Ask, "key", lambda self, depth, rank=0: self.request.draft_noise.key(depth, rank))


def raw_q_after_warped_draw(patch: MonkeyPatch) -> None:
    """14: the draft is drawn after top-k, but the stored q is the model's own."""
    original = ModelDrafter._draw

    def draw(
        self: ModelDrafter, drawing: Any, logits: torch.Tensor, tables: list[torch.Tensor], hidden: Any = None
    ) -> None:
        original(self, drawing, logits, tables, hidden)
        tables[-1] = logits.softmax(-1)

    patch.setattr(ModelDrafter, "_draw", draw)


def whole_q_of_a_draft_vocabulary(patch: MonkeyPatch) -> None:
    """Drafts are drawn from four of the tokens, but judged with the q of all of them."""
    narrow = replace(law_setting(), words=4)
    patch.setattr("tests.lossless.test_law.law_setting", lambda: narrow)
    original, forward = ModelDrafter._draw, Toy.forward
    whole = list[torch.Tensor]()

    def both(self: Toy, rows: Any) -> Any:
        out = forward(self, rows)
        if self.drafts:
            inside, self.inside = self.inside, None
            whole[:] = [forward(self, rows).logits]
            self.inside = inside
        return out

    def draw(
        self: ModelDrafter, drawing: Any, logits: torch.Tensor, tables: list[torch.Tensor], hidden: Any = None
    ) -> None:
        original(self, drawing, logits, tables, hidden)
        tables[-1] = whole[0].softmax(-1)

    patch.setattr(Toy, "forward", both)
    patch.setattr(ModelDrafter, "_draw", draw)


def dropped_by_content(patch: MonkeyPatch, keep: Callable[[list[int]], int]) -> None:
    original = ModelDrafter.draft

    def draft(self: ModelDrafter, asks: Any, view: Any) -> Forest:
        forest = original(self, asks, view)
        shorter = Forest(q=forest.q)
        for place, nodes in enumerate(forest.by_request(1 + max(forest.request, default=0))):
            tokens = [forest.token[n] for n in nodes]
            n = keep(tokens)
            if n:
                q_rows = [forest.q_row[i] for i in nodes[:n]]
                shorter.add_chain(place, tokens[:n], forest.law[nodes[0]], q_rows)
        return shorter

    patch.setattr(ModelDrafter, "draft", draft)


def pruned_by_token(patch: MonkeyPatch) -> None:
    """9: a drawn chain is cut before its first odd token."""
    dropped_by_content(patch, lambda tokens: next((i for i, t in enumerate(tokens) if t % 2), len(tokens)))


def forest_dropped_by_content(patch: MonkeyPatch) -> None:
    """18: the whole draft is thrown away when its first token is odd."""
    dropped_by_content(patch, lambda tokens: 0 if tokens and tokens[0] % 2 else len(tokens))


def reshaped(patch: MonkeyPatch, change: Callable[[Forest, list[int]], list[int]]) -> None:
    """Every request's tree of a round, as the nodes that `change` lists, in its order."""
    original = TreeDrafter.draft

    def draft(self: TreeDrafter, asks: Any, view: Any) -> Forest:
        forest = original(self, asks, view)
        other, index = Forest(q=forest.q), {ROOT: ROOT}
        for nodes in forest.by_request(1 + max(forest.request, default=0)):
            twins: dict[int, int] = {}
            for i in change(forest, nodes):
                if forest.parent[i] in index:
                    at = (forest.request[i], forest.token[i], index[forest.parent[i]])
                    index[i] = other.add(*at, law=forest.law[i], q_row=forest.q_row[i], twin=twins.get(forest.row[i]))
                    twins.setdefault(forest.row[i], index[i])
        return other

    patch.setattr(TreeDrafter, "draft", draft)
    patch.setattr(TreeDrafter, "learn", lambda self, view: None)  # its rows are no longer the forest's


def reshaping_nothing(patch: MonkeyPatch) -> None:
    """The control of the mutants made by `reshaped`."""
    reshaped(patch, lambda forest, nodes: nodes)


def top_k_judged_with_q(patch: MonkeyPatch) -> None:
    """6: the children are the most probable tokens, but they are judged as if drawn."""
    patch.setattr(tree, "perturbed", lambda log_q, keys: log_q)


def unnormalised_q(patch: MonkeyPatch) -> None:
    """7"""

    def next_draw(q: torch.Tensor, token: int) -> torch.Tensor:
        q = q.clone()
        q[token] = 0.0
        return q

    patch.setattr(rrs, "next_draw", next_draw)


def siblings_by_token(patch: MonkeyPatch) -> None:
    """8: siblings are judged in the order of their ids, not in that of the draws."""
    reshaped(patch, lambda f, nodes: sorted(nodes, key=lambda i: (f.depth[i], f.token[i])))


def siblings_pruned_by_token(patch: MonkeyPatch) -> None:
    """9: drawn nodes with an odd token are dropped."""
    reshaped(patch, lambda f, nodes: [i for i in nodes if f.token[i] % 2 == 0])


def duplicates_removed(patch: MonkeyPatch) -> None:
    """10: of i.i.d. candidates that agree one is judged."""
    original = kseq.select

    def select(p: torch.Tensor, q: torch.Tensor, tokens: list[int], coins: list[float]) -> Any:
        first = [i for i, token in enumerate(tokens) if token not in tokens[:i]]
        chosen, rest = original(p, q, [tokens[i] for i in first], coins)
        return (None if chosen is None else first[chosen]), rest

    patch.setattr(kseq, "select", select)


def raw_q_of_a_tree(patch: MonkeyPatch) -> None:
    """14: the tree is drawn after top-k, but the stored q is the model's own."""
    original = TreeDrafter._level

    def level(self: TreeDrafter, places: Any, logits: torch.Tensor, tables: list[torch.Tensor]) -> None:
        count = len(tables)
        original(self, places, logits, tables)
        tables[count:] = [logits.softmax(-1)] * (len(tables) - count)

    patch.setattr(TreeDrafter, "_level", level)


def grammar_unknown_to_the_draft(patch: MonkeyPatch) -> None:
    """The draft is drawn without the grammar's mask, and its q is that distribution: harmless where drawn nodes
    stay."""
    original = TreeDrafter._level

    def level(*args: Any) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Structure, "apply", lambda self, states, logits: logits)
            original(*args)

    patch.setattr(TreeDrafter, "_level", level)


def pruned_under_a_q_rule(patch: MonkeyPatch) -> None:
    """9: drawn nodes that the grammar rules out are dropped before they are judged."""
    grammar_unknown_to_the_draft(patch)
    patch.setattr(prune, "drawn", lambda part, node, items: False)


BLOCK = Setting().block_size


def heads_tree_by_token(patch: MonkeyPatch) -> None:
    """9, of trees on a head: a node's children that are odd are left out."""
    original = HeadDrafter.expand

    def expand(self: HeadDrafter, tree: Any, laws: Any) -> list[int]:
        kept = {
            place: replace(draws, token=[token for token in draws.token if token % 2 == 0])
            for place, draws in laws.items()
        }
        return original(self, tree, kept)

    patch.setattr(HeadDrafter, "expand", expand)


Mutant = Callable[[MonkeyPatch], None]
LAW: list[tuple[Mutant, str, str, str]] = [
    (residual_is_p, "model", "chain", "temperature"),
    (bonus_by_argmax, "model", "chain", "temperature"),
    (replayed_draft_noise, "model", "chain", "temperature"),
    (raw_q_after_warped_draw, "model", "chain", "top-k"),
    (whole_q_of_a_draft_vocabulary, "model", "chain", "temperature"),
    (pruned_by_token, "model", "chain", "temperature"),
    (forest_dropped_by_content, "model", "chain", "temperature"),
    (top_k_judged_with_q, "rsd_c", "rrs", "temperature"),
    (unnormalised_q, "dyspec", "rrs", "temperature"),
    (siblings_pruned_by_token, "dyspec", "rrs", "temperature"),
    (duplicates_removed, "spectr", "kseq", "top-k"),
    (raw_q_of_a_tree, "rsd_c", "rrs", "top-k"),
    (pruned_under_a_q_rule, "rsd_c", "rrs", "grammar"),
    (heads_tree_by_token, "medusa", "rrs", "temperature"),
]
FULL_LAW: list[tuple[Mutant, str, str, str]] = [
    (siblings_by_token, "rsd_s", "rrs", "temperature"),
    (replayed_draft_noise, "rsd_s", "rrs", "temperature"),
    (pruned_by_token, "specdec", "chain", "temperature"),
    (forest_dropped_by_content, "specdec", "chain", "temperature"),
    (replayed_draft_noise, "specdec", "chain", "temperature"),
]
"""For the full sweep: of trees that are slow to draw, and what `model` shows, too."""


def law_size(drafter: str, verifier: str) -> tuple[int, int]:
    """Draws, and tokens of each. The bias of too few i.i.d. candidates is small: it is looked for in the first token
    alone."""
    return (5000, 1) if verifier == "kseq" else (4000 if drafter in ("model", "specdec") else 2500, 3)


def law_p(drafter: str, verifier: str, feature: str) -> float:
    return worst_p(drafter, verifier, feature, range(1), *law_size(drafter, verifier))


@pytest.mark.parametrize(
    ("mutant", "drafter", "verifier", "feature"),
    [*LAW, *(pytest.param(*cell, marks=pytest.mark.full) for cell in FULL_LAW)],
    ids=lambda m: getattr(m, "__name__", m),
)
def test_mutant_dies_in_law(
    mutant: Mutant, drafter: str, verifier: str, feature: str, monkeypatch: MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert p_of_a_mutant(drafter, verifier, feature, *law_size(drafter, verifier)) < 1e-6


@pytest.mark.full
@pytest.mark.parametrize(("drafter", "verifier", "feature"), sorted({cell[1:] for cell in [*LAW, *FULL_LAW]}))
def test_without_a_mutant_the_same_laws_hold(
    drafter: str, verifier: str, feature: str, monkeypatch: MonkeyPatch
) -> None:
    """In every run `test_law` says so, of one feature for each drafter and verifier."""
    reshaping_nothing(monkeypatch)
    assert law_p(drafter, verifier, feature) > 1e-4


def test_a_draft_that_ignores_the_grammar_keeps_the_law(monkeypatch: MonkeyPatch) -> None:
    """What it draws in vain is judged as drawn, and rejected."""
    grammar_unknown_to_the_draft(monkeypatch)
    assert law_p("rsd_c", "rrs", "grammar") > 1e-4


def test_shared_noise_dies_in_law(monkeypatch: MonkeyPatch) -> None:
    """Its bias is small (total variation 0.06 on this toy), so it is looked for in the first token alone."""
    assert worst_p("model", "chain", "temperature", range(1), 3000, length=1) > 1e-4
    shared_noise_under_chain(monkeypatch)
    assert p_of_a_mutant("model", "chain", "temperature", 8000, length=1) < 1e-6


def penalties_frozen(patch: MonkeyPatch) -> None:
    """4: every node of a draft is judged with the processors' state at its root."""
    original = Judge._refs

    def refs(*args: Any) -> Any:
        rows, logits, line = original(*args)
        return [(request, ()) for request, _ in rows], logits, line

    patch.setattr(Judge, "_refs", staticmethod(refs))


def emit_something_else(patch: MonkeyPatch) -> None:
    """5: accept if equal, but on a mismatch emit a fresh draw."""
    original = Exact._descend

    def descend(self: Exact, case: Any, place: int, drawn: dict[int, int]) -> None:
        original(self, case, place, drawn)
        verdict = case.verdict
        last = verdict.path[place][-1] if verdict.path[place] else case.roots[place]
        if case.children.get(last):
            line = case.line[last]
            ref = case.refs[line]
            key = ref[0].accept_noise.key(ref[0].index(len(ref[1])))
            verdict.next_token[place] = case.sampler.draw([ref], case.scores[line : line + 1], [key])[0]

    patch.setattr(Exact, "_descend", descend)


def stale_mask(patch: MonkeyPatch) -> None:
    """13: every candidate sees all candidates before it, not its ancestors only."""
    patch.setattr(layout, "tree_words", lambda forest, nodes: [(2 << j) - 1 for j in range(len(nodes))])


def stale_position(patch: MonkeyPatch) -> None:
    """13: candidates take the place after their neighbour instead of their parent."""
    original = layout.RowsBuilder.add

    def add(self: Any, *args: Any, depths: Any = None, **kwargs: Any) -> None:
        original(self, *args, depths=[1 + i for i in range(len(depths))] if depths else depths, **kwargs)

    patch.setattr(layout.RowsBuilder, "add", add)


def missed_stop(patch: MonkeyPatch) -> None:
    """15: a stop inside an accepted run is not seen."""

    original = Session.read

    def read(self: Session, items: Any, results: Any) -> None:
        for item, result in zip(items, results):
            stopper = self.stoppers[item.request.id]
            ids, stopper.ids = stopper.ids, stopper.ids - set(result.tokens[:-1])
            original(self, [item], [result])
            stopper.ids = ids

    patch.setattr(Session, "read", read)


def forks_without_lineage(patch: MonkeyPatch) -> None:
    """16: all samples of a prompt draw with the same noise."""
    original = session.Request

    def make(*args: Any, lineage: Any = (), **kwargs: Any) -> Any:
        return original(*args, lineage=(), **kwargs)

    patch.setattr(session, "Request", make)


def moves_forgotten(patch: MonkeyPatch) -> None:
    """The accepted path of a tree is not made contiguous."""
    patch.setattr(Setting, "target", lambda self, adapter="", make=Setting.target: _frozen(make(self, adapter)))


def _frozen(toy: Any) -> Any:
    toy.move = lambda source, target: None
    return toy


def stale_frontier(patch: MonkeyPatch) -> None:
    """The draft model keeps K/V of rejected tokens: harmless for the text, so it must survive (see below)."""
    patch.setattr(ModelDrafter, "learn", lambda self, view: None)


def siblings_share_a_parse(patch: MonkeyPatch) -> None:
    """The grammar's parser goes forward only: a node's mask is that of whatever path was asked for before it."""

    def go(self: Parse, place: Place, until: float) -> tuple[bool, None]:
        if place.before is not None and place.key not in self._trail:
            go(self, place.before, until)
            self._parser.try_consume_tokens([place.token])
            self._trail.append(place.key)
        return True, None

    patch.setattr(Parse, "_go", go)


def one_noise_for_all_passes(patch: MonkeyPatch) -> None:
    """Every token of several passes in one call is drawn with the noise of the first."""
    original = Compute._continuation

    def continuation(self: Compute, item: Any, passes: int) -> Any:
        text = original(self, item, passes)
        return text._replace(keys=text.keys[:1] * text.most)

    patch.setattr(Compute, "_continuation", continuation)


def everybody_straight(patch: MonkeyPatch) -> None:
    """Requests go without a judge and by temperature alone, whatever else makes their distribution."""
    patch.setattr(Judge, "judge_free", lambda self, request: True)
    patch.setattr(Sampler, "warp", lambda self, request, path=(): Warp(request.params.temperature))


def rules_taken_for_granted(patch: MonkeyPatch) -> None:
    """Requests with rules go without a judge on a target that cannot apply them."""
    original = Judge.judge_free

    def judge_free(self: Judge, request: Any) -> bool:
        with MonkeyPatch.context() as inner:
            target = self.components[TARGET]
            inner.setattr(target, "abilities", target.abilities | {"rules"})
            return original(self, request)

    patch.setattr(Judge, "judge_free", judge_free)


def rules_of_the_first_token(patch: MonkeyPatch) -> None:
    """Every run changes logits as before the first token of the output."""
    original = Sampler.warp

    def warp(self: Sampler, request: Any, path: Any = ()) -> Warp | None:
        fresh = Sampler(self.vocab_size)
        fresh.admit(replace(request, output=[], lease=None))
        return original(fresh, request, path)

    patch.setattr(Sampler, "warp", warp)


def rules_of_the_run_alone(patch: MonkeyPatch) -> None:
    """Every token of a run is drawn by the rules as they stood at its first."""
    original = toy.edited_plainly
    patch.setattr(toy, "edited_plainly", lambda x, rules, said: original(x, rules, ()))


def entries_changed(patch: MonkeyPatch, change: Callable[[Entry], Entry]) -> None:
    original = drafters.entered

    def entered(*args: Any) -> list[Entry | None]:
        return [entry and change(entry) for entry in original(*args)]

    patch.setattr(drafters, "entered", entered)


def stale_hidden_reused(patch: MonkeyPatch) -> None:
    """Rows go on from the hidden states of their neighbours."""
    entries_changed(patch, lambda entry: entry._replace(hidden=entry.hidden.roll(1, 0)))


def entered_a_layer_too_high(patch: MonkeyPatch) -> None:
    """An exit's number of layers is taken for the number of the next one."""
    entries_changed(patch, lambda entry: entry._replace(layer=entry.layer + 1))


def one_row_too_many_reused(patch: MonkeyPatch) -> None:
    """The last drafted token counts as computed, with the hidden state of the one before."""
    original = EarlyExit.draft

    def draft(self: EarlyExit, asks: Any, view: Any) -> Forest:
        forest = original(self, asks, view)
        for place, entry in forest.entries.items():
            forest.entries[place] = entry._replace(hidden=torch.cat([entry.hidden, entry.hidden[-1:]]))
        return forest

    patch.setattr(EarlyExit, "draft", draft)


def fuzzy_rows_published(patch: MonkeyPatch) -> None:
    """A set of sub-layers is scored in the request's own blocks: what that pass keeps stays, and is shared."""
    original = Swift.matchness

    def matchness(self: Swift, ask: Ask, choice: Any) -> float | None:
        self.scratch = ask.txn.lease.blocks[max(0, len(ask.request.tokens) - 1 - swift.SCRATCH) // BLOCK :]
        return original(self, ask, choice)

    patch.setattr(swift, "SCRATCH", 6)
    patch.setattr(Swift, "matchness", matchness)


def probes_seen(patch: MonkeyPatch) -> None:
    """A candidate sees the probes of its request, too."""
    original = layout.tree_words

    def words(forest: Forest, nodes: Any) -> list[int]:
        probes = sum(1 << j for j, node in enumerate(nodes) if forest.role[node] is Role.PROBE)
        return [
            word | (probes if forest.role[node] is Role.CANDIDATE else 0)
            for node, word in zip(nodes, original(forest, nodes))
        ]

    patch.setattr(layout, "tree_words", words)


def deferred_rows_of_a_neighbour(patch: MonkeyPatch) -> None:
    """A deeper stage goes on from the hidden state of the row before."""
    original = S2DDrafter.run

    def run(self: S2DDrafter, parts: Any, program: Any, entering: Any = None) -> Any:
        return original(self, parts, program, None if entering is None else entering.roll(1, 0))

    patch.setattr(S2DDrafter, "run", run)


def rejected_rows_kept(patch: MonkeyPatch) -> None:
    """The stages keep what they made of rejected tokens."""
    original = S2DDrafter.learn

    def learn(self: S2DDrafter, view: Any) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Ragged, "crop", lambda self, rows: setattr(self, "reach", [min(r, rows) for r in self.reach]))
            original(self, view)

    patch.setattr(S2DDrafter, "learn", learn)


TEXT: list[tuple[Callable[[MonkeyPatch], None], str, str]] = [
    (penalties_frozen, "greedy penalties", "model"),
    (emit_something_else, "temperature", "ngram"),
    (stale_mask, "temperature", "user"),
    (stale_position, "temperature", "user"),
    (missed_stop, "stop ids", "model"),
    (forks_without_lineage, "temperature", "none"),
    (moves_forgotten, "greedy", "user"),
    (penalties_frozen, "grammar", "model"),
    (siblings_share_a_parse, "grammar", "topk"),
    (one_noise_for_all_passes, "temperature", "none"),
    (one_noise_for_all_passes, "temperature", "model"),
    (stale_hidden_reused, "temperature", "early_exit"),
    (entered_a_layer_too_high, "temperature", "early_exit"),
    (one_row_too_many_reused, "greedy", "early_exit"),
    (stale_hidden_reused, "greedy", "del"),
    (fuzzy_rows_published, "temperature", "swift"),
    (everybody_straight, "top-k", "none"),
    (everybody_straight, "top-k", "model"),
    (everybody_straight, "bias", "none"),
    (everybody_straight, "greedy penalties", "none"),
    (rules_of_the_first_token, "greedy penalties", "none"),
    (rules_of_the_run_alone, "greedy penalties", "none"),
    (rules_of_the_run_alone, "penalties", "model"),
    (probes_seen, "greedy", "ppd"),
    (stale_mask, "temperature", "eagle3"),
    (stale_position, "temperature", "longspec"),
    (moves_forgotten, "greedy", "falcon"),
]


TEXT_OF_COMPANIONS: list[tuple[Callable[[MonkeyPatch], None], str, str]] = [
    (emit_something_else, "temperature", "s2d"),
    (emit_something_else, "temperature", "specdec"),
    (penalties_frozen, "greedy penalties", "s2d"),
    (penalties_frozen, "greedy penalties", "specdec"),
    (missed_stop, "stop ids", "s2d"),
]


def fixed_cases(feature: str, drafter: str, count: int = 40, **more: Any) -> None:
    """Seeded cases of one cell, and more of their settings."""
    rng = random.Random(0)
    for case in range(count):
        nodes = {"ngram": 4, "model": 4, "user": 8}
        setting = Setting(model_seed=case % 5, draft_noise=0.3, nodes=nodes, patience_ms=1e9 * (case % 2), **more)
        params = {
            "top_p": 1.0,
            "top_k": 0,
            **FEATURES[feature],
            "drafter": drafter,
            "max_tokens": 20,
            "n": 1 + case % 2,
        }
        wishes = [
            Wish([rng.randrange(7) for _ in range(6)], SamplingParams(seed=case, **params).resolve({}))
            for _ in range(3)
        ]
        check(setting, wishes)


@pytest.mark.parametrize("drafter", ["none", "model"])
def test_a_target_that_runs_but_knows_no_rules(drafter: str, monkeypatch: MonkeyPatch) -> None:
    """A judge has the requests with rules, and the others still run."""
    ran, run = list[bool](), Toy.run
    monkeypatch.setattr(Toy, "run", lambda self, *args: ran.append(True) or run(self, *args))  # type: ignore[func-returns-value]
    fixed_cases("penalties", drafter, 4, ruled=False)
    assert not ran
    fixed_cases("temperature", drafter, 2, ruled=False)
    assert ran
    rules_taken_for_granted(monkeypatch)
    with pytest.raises(AssertionError):
        fixed_cases("penalties", drafter, 16, ruled=False)


@pytest.mark.parametrize("able", [False, True])
def test_a_draft_model_that_knows_no_rules_is_asked_for_no_chain_with_them(able: bool) -> None:
    engine = Setting(nodes={"model": 4}).engine()
    draft, seen = engine.judge.components["draft"], list[Warp]()

    def chain(rows: Any, most: list[int], warps: list[Warp], *_: Any) -> list[list[int]]:
        seen.extend(warps)
        raise InterruptedError

    draft.abilities = (draft.abilities | {"chain"}) - (frozenset() if able else {"rules"})  # type: ignore[misc]
    draft.chain = chain  # type: ignore[attr-defined]
    wish = {"drafter": "model", "seed": 1, "max_tokens": 12, "logprobs": 0, **FEATURES["penalties"]}
    engine.submit([1, 2, 3], SamplingParams(**wish).resolve({}))
    while engine.busy:  # without a drafter that failed
        engine.step()
    assert bool(seen) is able


@pytest.mark.parametrize(("mutant", "feature", "drafter"), TEXT, ids=lambda m: getattr(m, "__name__", m))
def test_mutant_dies_by_text(
    mutant: Callable[[MonkeyPatch], None], feature: str, drafter: str, monkeypatch: MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        fixed_cases(feature, drafter)


@pytest.mark.full
@pytest.mark.parametrize(("feature", "drafter"), sorted({(f, d) for _, f, d in TEXT}))
def test_without_a_mutant_the_same_cases_pass(feature: str, drafter: str) -> None:
    """By default the cells of the matrix show it."""
    fixed_cases(feature, drafter)


@pytest.mark.full
@pytest.mark.parametrize(("mutant", "feature", "drafter"), TEXT_OF_COMPANIONS, ids=lambda m: getattr(m, "__name__", m))
def test_mutant_dies_by_text_of_a_companion(
    mutant: Callable[[MonkeyPatch], None], feature: str, drafter: str, monkeypatch: MonkeyPatch
) -> None:
    fixed_cases(feature, drafter)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        fixed_cases(feature, drafter)


@pytest.mark.full
@pytest.mark.parametrize("mutant", [deferred_rows_of_a_neighbour, rejected_rows_kept])
def test_what_s2d_defers_is_draft_alone(mutant: Callable[[MonkeyPatch], None], monkeypatch: MonkeyPatch) -> None:
    """Wrong hidden states and stale rows of the draft cost acceptance, never text."""
    mutant(monkeypatch)
    fixed_cases("temperature", "s2d")


def test_drafter_memory_is_disposable(monkeypatch: MonkeyPatch) -> None:
    """A drafter that forgets everything it computed costs time, never text."""
    stale_frontier(monkeypatch)
    fixed_cases("temperature", "model")


def test_engine_and_roles_are_what_the_mutants_patch() -> None:
    """The patched seams are the ones in use (a rename must not turn a mutant into a no-op)."""
    assert hasattr(Compute, "_continuation") and Role.CANDIDATE == 1 and compute.lay_out is layout.lay_out
