"""The loop: propose cheaply, verify exactly, commit or roll back. There are no phases (D1)."""

import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from paceline.cache.txn import Txn
from paceline.core.errors import CapacityError, InputError, IntegrityError, RefusalError
from paceline.core.forest import Forest, join
from paceline.core.params import SamplingParams
from paceline.core.plan import Item, Note, Plan
from paceline.core.registry import law_for, refusal
from paceline.core.request import FinishReason, Request
from paceline.core.rows import Chains, Lookups, Model, Out, Run, Straight
from paceline.core.verdict import Verdict
from paceline.draft import DRAFTERS, Ask, Drafter, Host, UserFn, View, behind
from paceline.engine import runs
from paceline.engine.config import EngineConfig, Timer
from paceline.engine.desk import Desk
from paceline.engine.detokenize import Detokenizer
from paceline.engine.judge import Judge, add_prompt_logprobs
from paceline.engine.layout import Layout, lay_out, measured
from paceline.engine.prune import prune
from paceline.engine.recorder import Recorder
from paceline.engine.roster import Entry, Roster
from paceline.engine.stop import Stopper
from paceline.engine.totals import Totals
from paceline.plan.cost import StepTimes, Times
from paceline.plan.cut import trim
from paceline.sample.grammar import Grammars, vocabulary
from paceline.sample.sampler import Sampler
from paceline.schedule import policies as schedules
from paceline.verify import VERIFIERS

log = logging.getLogger("paceline")
AUTO, NONE = "auto", "none"
MOST_DRAFTERS = 256
"""Drafters and combinations of them that an engine keeps; clients name the latter."""


class Engine:
    """Continuous batching of requests over one target model, each with its own drafter and verifier.

    `submit` and `abort` take effect at the next `step`; `step` returns the requests whose output grew or ended.
    Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        draft: Model | None = None,
        callable: UserFn | None = None,
        tokenizer: Any = None,
        eos: Collection[int] = (),
        times: StepTimes | None = None,
        now: Callable[[], float] = monotonic,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`times`: what steps cost, as far as known. `now` tells when requests arrive, `clock` how long parts of a step
        take; both in seconds."""
        if config.row_budget < config.max_requests:
            raise InputError(f"row_budget {config.row_budget} is below max_requests {config.max_requests}; raise it.")
        self.model, self.draft_model, self.config = model, draft, config
        self.now, self.clock = now, clock
        self.tokenizer, self.eos = tokenizer, frozenset(eos)
        self.have = {n for n, it in (("draft", draft), ("callable", callable)) if it is not None}
        encode = (
            (lambda text: list(tokenizer.encode(text, add_special_tokens=False))) if tokenizer is not None else None
        )
        spell = partial(vocabulary, tokenizer, model.vocab_size, sorted(self.eos)) if tokenizer is not None else None
        self.sampler = Sampler(model.vocab_size, encode=encode, grammars=Grammars(spell, model.vocab_size))
        self.judge = Judge(self.sampler)
        self.run: Run | None = getattr(model, "run", None)
        self.host = Host(self.sampler, model.vocab_size, draft, callable, min(512, config.row_budget), config.remember)
        self.cards = {name: card for name, card in DRAFTERS.items() if not card.needs - self.have}
        model.allocate(config.blocks, config.block_size)
        if draft is not None:
            draft.allocate(config.blocks, config.block_size)
        self.roster = Roster.of(times or StepTimes(), config.free_rows, config.row)
        self.chooser = self.roster.chooser
        self.recorder = Recorder()
        for name in [*self.cards, *DRAFTERS.card(AUTO).arms]:
            self._enrol(name)
        groups = sorted({card.group for card in self.cards.values() if card.group})
        self.desk = Desk.of(config, self.roster, groups)
        self.cache = self.desk.cache
        self.drafters: dict[str, Drafter] = {}
        self.slots: dict[str, dict[int, Any]] = {}
        self.stoppers: dict[int, Stopper] = {}
        self.timer = Timer()
        self.totals = Totals()
        self.drafter_errors: list[Exception] = []
        """The latest; how many there were is in `totals`."""
        self._drafting: dict[str, float] = {}
        """Seconds of each drafter in this step."""
        self._next_id = 0
        self._changed: list[Request] = []

    # -- the door ------------------------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], params: SamplingParams, *, lineage: tuple[int, ...] = ()) -> list[Request]:
        """Queue one prompt (token ids) and return its `params.n` requests. Raises InputError, RefusalError or
        CapacityError when it cannot be served; nothing is queued then."""
        seed = secrets.randbits(64) if params.seed is None else params.seed
        drafter, verifier = params.drafter or self.config.drafter, params.verifier or self.config.verifier
        arms = self._check(prompt, params, drafter, verifier)
        room, now = self.model.max_len - len(prompt), self.now()
        requests = []
        for sample in range(params.n):
            request = Request(
                self._next_id + sample,
                list(prompt),
                params,
                seed,
                eos=self.eos,
                lineage=(*lineage, sample) if params.n > 1 else lineage,
                group=self._next_id,
                drafter=drafter,
                arms=arms,
                verifier=verifier,
                max_tokens=min(room, params.max_tokens or room),
                arrival=now,
                key=params.user,
            )
            self._check_capacity(request)
            requests.append(request)
        detokenizers = [self._detokenizer(r.prompt, params) for r in requests]
        stoppers = {r.id: Stopper(r, d) for r, d in zip(requests, detokenizers)}
        for request in requests:
            self.sampler.admit(request)
            request.straight = self.run is not None and self.judge.straight(request)
        self.stoppers.update(stoppers)
        self._next_id += params.n
        self.desk.waiting.extend(requests)
        for request in requests:
            self.recorder.arrived(request)
        return requests

    def _detokenizer(self, prompt: list[int], params: SamplingParams) -> Detokenizer | None:
        known = self.tokenizer is not None
        return Detokenizer(self.tokenizer, params.skip_special_tokens, prompt) if known else None

    def _check(self, prompt: Sequence[int], params: SamplingParams, drafter: str, verifier: str) -> tuple[str, ...]:
        """The drafters that a choice is made from, once all is known to be in order."""
        if not prompt:
            raise InputError("The prompt is empty; give at least one token.")
        if len(prompt) >= self.model.max_len:
            raise InputError(
                f"The prompt has {len(prompt)} tokens, but the context holds {self.model.max_len} with at least one "
                "to generate; shorten it."
            )
        bad = next((t for t in prompt if not 0 <= t < self.model.vocab_size), None)
        if bad is not None:
            raise InputError(f"Token id {bad} is outside the vocabulary [0, {self.model.vocab_size}).")
        schedules.check_wishes(params, self.config.order)
        card = DRAFTERS.card(drafter)
        reason = refusal(drafter, card, verifier, VERIFIERS.card(verifier), self.have)
        if reason:
            raise RefusalError(reason)
        arms = self._arms(drafter, verifier)
        for name in (drafter, *arms):
            self._enrol(name)
        return arms

    def _arms(self, drafter: str, verifier: str) -> tuple[str, ...]:
        """The drafters that a choice is made from: of `auto` those that can serve, of a user's own all, or
        RefusalError."""
        reasons = {
            arm: refusal(arm, DRAFTERS.card(arm), verifier, VERIFIERS.card(verifier), self.have)
            for arm in DRAFTERS.card(drafter).arms
        }
        refused = next((reason for reason in reasons.values() if reason), None)
        if refused and drafter != AUTO:
            raise RefusalError(refused)
        return tuple(arm for arm, reason in reasons.items() if not reason)

    def _enrol(self, name: str) -> None:
        """Make a drafter known that the engine has what it needs for: a merged one or a choice, for the first time."""
        card = DRAFTERS.card(name)
        if name in self.roster.entries or card.needs - self.have:
            return
        if len(self.cards) >= MOST_DRAFTERS:
            raise InputError(f"Drafter {name[:80]!r} would be one of too many combinations; use one used before.")
        self.cards[name] = card
        limit = self.draft_model.max_len if card.group and self.draft_model is not None else None
        most = self.config.nodes.get(name)
        nodes = card.nodes if most is None else most
        able = card.runs and self.run is not None and (card.group is None or hasattr(self.draft_model, "run"))
        entry = Entry(nodes, card.shape == "chain", card.group, limit, card.thrifty, most, card.sure, able)
        self.roster.enrol(name, entry)
        self.recorder.enrolled(name, entry)

    def _check_capacity(self, request: Request) -> None:
        """The request alone, at its longest, must fit the cache: then pre-emption can always make room."""
        most = self.cache.blocks_for(len(request.prompt) + request.max_tokens)
        if most > self.config.blocks:
            per_block = self.config.block_size * self.bytes_per_token
            raise CapacityError(
                f"The request can grow to {len(request.prompt) + request.max_tokens} tokens, which needs "
                f"{most * per_block:,} bytes of K/V cache, but the budget is {self.config.blocks * per_block:,}; "
                "lower max_tokens or raise memory."
            )

    @property
    def bytes_per_token(self) -> int:
        """K/V bytes of one token, target and draft together."""
        return self.model.kv_bytes_per_token + (self.draft_model.kv_bytes_per_token if self.draft_model else 0)

    def abort(self, request: Request) -> None:
        """End a request where it stands; its output so far stays."""
        if request.finish is None:
            self.recorder.aborted(request)
            self._finish(request, "abort")
            self.chooser.drop(request)

    @property
    def busy(self) -> bool:
        return self.desk.busy

    # -- one step ------------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """One pass of the target model over everybody's rows."""
        started = self.clock()
        self._changed = []
        now = self.now()
        admitted = self.desk.admit(now)
        for request in admitted:
            if not request.stats.preempted:
                self.totals.admitted(request)
        plan = self.desk.plan(now)
        self.recorder.planned(now, admitted, plan)
        for request in plan.preempt:
            self._forget(request)
            self.totals.preemptions += 1
        if plan.items:
            self._run(plan, started)
        elif not plan.preempt and self.busy:
            raise IntegrityError("No request can run and none was pre-empted.")
        if self.config.check:
            self.cache.check_integrity()
        self.timer.step += self.clock() - started
        self.timer.steps += 1
        return self._changed

    def _run(self, plan: Plan, begun: float) -> None:
        items = plan.items
        txns: list[Txn] = []
        try:
            for item in items:
                txns.append(self.desk.begin(item, plan.passes))
            asks = self._asks(items, txns)
            several, chains = self._chains(plan, asks)
            forest = self._draft(plan, asks, several)
            layout = lay_out(forest, items, txns)
            rows = layout.builder.build(self.model.device)
            texts = [self._straight(item, plan.passes) for item in items] if several else []
            started = self.clock()
            out = self.run(rows, plan.passes, texts, chains) if self.run and texts else self.model.forward(rows)
            target = self.clock() - started - self._drafted(plan, out)
            self.timer.target += target
            started = self.clock()
            add_prompt_logprobs(items, layout, out)
            verdict = self.judge.judge(items, forest, layout, out)
            self.timer.sample += self.clock() - started
        except BaseException:
            for txn in txns:
                txn.abort()
            raise
        if out.drawn is None:
            work, parts = measured(items, txns, layout, forest, self.cards)
        else:
            work, parts = runs.measured(items, [txn.base for txn in txns], out.drawn.passes)
        for place, (item, txn) in enumerate(zip(items, txns)):
            self._settle(place, item, txn, forest, verdict)
        found = self._learn(asks, verdict, layout, out)
        notes = [n for place in range(len(items)) for n in self._emit(place, plan, forest, layout, verdict, out)]
        if found:
            ended = {item.request.id for item in items if item.request.finish is not None}
            notes += [note for note in found if note.request not in ended]
        rest = self.clock() - begun - target - sum(self._drafting.values())
        times = Times(target, self._drafting, rest)
        self.recorder.ran(forest, verdict, out.drawn, notes, work, parts, times)
        self.chooser.learn(notes, work, parts, times)
        for item in items:
            if item.request.finish is not None:
                self.chooser.drop(item.request)

    def _straight(self, item: Item, passes: int) -> Straight:
        temperature = self.sampler.temperature(item.request) or 0.0
        return runs.straight(item, passes, temperature, self.stoppers[item.request.id].ids)

    def _forget(self, request: Request) -> None:
        """Drop what drafters remember of a request that gave up its lease."""
        for slots in self.slots.values():
            slots.pop(request.id, None)

    # -- propose ---------------------------------------------------------------------------------------------------

    def _asks(self, items: Sequence[Item], txns: Sequence[Txn]) -> dict[str, list[Ask]]:
        asks: dict[str, list[Ask]] = {}
        for place, (item, txn) in enumerate(zip(items, txns)):
            if item.drafter == NONE and not item.request.arms:
                continue
            accepts, group = VERIFIERS.card(item.verifier), None
            if item.drafter != NONE:
                card = self.cards[item.drafter]
                asks.setdefault(item.drafter, []).append(Ask(place, item, law_for(card, accepts), txn))
                group = card.group
            for keeper in item.request.arms:  # its K/V is kept up while another drafts
                card = self.cards[keeper]
                if card.group is not None and card.group != group and card.group in txn.lease.frontier:
                    if behind(item, txn, card.group):
                        ask = Ask(place, item._replace(nodes=0), law_for(card, accepts), txn)
                        asks.setdefault(keeper, []).append(ask)
                    break
        return asks

    def _chains(self, plan: Plan, asks: dict[str, list[Ask]]) -> tuple[bool, Chains | Lookups | None]:
        """Is the step a run, and how is drafted in it?"""
        name = plan.drafter
        if plan.passes == 1 or name is None:
            return plan.passes > 1, None
        mine = [ask for ask in asks[name] if ask.item.nodes]
        try:
            drafter: Any = self._drafter(name)
            chains: Chains | Lookups | None = drafter.chains(mine, self._view(name, mine))
        except Exception as error:
            self._disown(name, asks.pop(name), error)
            return True, None
        return chains is not None, chains

    def _drafted(self, plan: Plan, out: Out) -> float:
        """Seconds that a run's drafts took, booked."""
        if out.drawn is None or plan.drafter is None:
            return 0.0
        seconds = out.drawn.drafting
        self._drafting[plan.drafter] = self._drafting.get(plan.drafter, 0.0) + seconds
        self.timer.draft += seconds
        return seconds

    def _draft(self, plan: Plan, asks: dict[str, list[Ask]], several: bool) -> Forest:
        """The drafts of a step; in a run, of those alone that only catch up."""
        items = plan.items
        given = [item.request.tokens[item.request.length :][: item.given] for item in items]
        parts: list[Forest] = []
        self._drafting = {}
        for name, each in list(asks.items()):
            mine = [ask for ask in each if not (several and ask.item.nodes)]
            if not mine:
                continue
            started = self.clock()
            try:
                forest = self._drafter(name).draft(mine, self._view(name, mine))
                forest.check({ask.place for ask in mine}, self.model.vocab_size)
                parts.append(prune(forest, items, self.sampler))
            except Exception as error:
                del asks[name]  # who has failed has nothing to learn
                self._disown(name, each, error)
            self._drafting[name] = self.clock() - started
            self.timer.draft += self._drafting[name]
        depth = [item.depth for item in items]
        return join(given, parts, self._trim(plan, parts), depth)

    def _trim(self, plan: Plan, parts: Sequence[Forest]) -> list[int]:
        """Rows that each item's draft keeps."""
        drafted = [0] * len(plan.items)
        for part in parts:
            for place, _ in set(zip(part.request, part.row)):
                drafted[place] = min(drafted[place] + 1, plan.items[place].nodes)
        self.recorder.drafted(drafted)
        return trim(plan, drafted, lambda drafter: self.cards[drafter].shape == "chain")

    def _view(self, name: str, asks: Sequence[Ask]) -> View:
        return View(self.slots.setdefault(name, {}), asks, self._advance)

    def _advance(self, ask: Ask, group: str, length: int) -> None:
        self.cache.advance(ask.txn.lease, group, length)
        self.cache.seal(ask.txn.lease)
        self.recorder.advanced(ask.request, group, length)

    def _drafter(self, name: str) -> Drafter:
        if name not in self.drafters:
            self.drafters[name] = DRAFTERS.get(name)(self.host)
        return self.drafters[name]

    def _disown(self, name: str, asks: Sequence[Ask], error: Exception) -> None:
        """A drafter that fails costs its requests their speed, never their text: they go on plainly."""
        log.warning("Drafter %r failed (%r); its %d requests go on without it.", name, error, len(asks))
        self.drafter_errors = [*self.drafter_errors[-15:], error]
        self.totals.failed(name)
        self.chooser.failed(name)
        self.recorder.failed(name, [ask.request for ask in asks])
        for ask in asks:
            if not ask.request.arms:
                ask.request.drafter = NONE
            self.slots.get(name, {}).pop(ask.request.id, None)

    def _learn(self, asks: dict[str, list[Ask]], verdict: Verdict, layout: Layout, out: Out) -> list[Note]:
        """Tell the drafters what came of their drafts; what they found beside it."""
        found: list[Note] = []
        rows = [*map(len, layout.candidates)] if asks else []
        for name, mine in asks.items():
            view = self._view(name, mine)
            view.probes = {a.place: out.logits[layout.probes[a.place]] for a in mine if a.place in layout.probes}
            view.rows, view.reach = rows, out.drawn.reach if out.drawn is not None else {}
            started = self.clock()
            try:
                self._drafter(name).learn(view, verdict)
            except Exception as error:
                self._disown(name, mine, error)
            self._drafting[name] = self._drafting.get(name, 0.0) + self.clock() - started
            self.timer.draft += self.clock() - started
            found += view.found
        return found

    # -- commit ----------------------------------------------------------------------------------------------------

    def _settle(self, place: int, item: Item, txn: Txn, forest: Forest, verdict: Verdict) -> None:
        """Keep the given rows and the accepted path, drop everything else."""
        path = verdict.path[place]
        ranks = [forest.row[n] - item.given for n in path]
        moves = self.desk.settle(item, txn, ranks, [forest.token[n] for n in path])
        if moves:
            source, target = [list(side) for side in zip(*moves)]
            self.model.move(source, target)
            if self.draft_model is not None:
                self.draft_model.move(source, target)

    def _emit(self, place: int, plan: Plan, forest: Forest, layout: Layout, verdict: Verdict, out: Out) -> list[Note]:
        """Append what the step produced, token by token, up to the first that ends the request."""
        item, last = plan.items[place], verdict.next_token[place]
        if last is None:
            return []
        request = item.request
        self._changed.append(request)
        emitted: list[int] = []
        finish: FinishReason | None = None
        stopper = self.stoppers[request.id]
        path, passes = verdict.path[place], out.drawn.passes[place] if out.drawn is not None else [(0, 0)]
        authors = runs.authors(item, passes) if out.drawn is not None else [item.drafter] * len(path) + [None]
        for token, author in zip([*(forest.token[n] for n in path), last], authors):
            if token < 0:
                finish = "error"
                request.error = request.error or self.sampler.empty_message(request)
                break
            request.append(token, author)
            emitted.append(token)
            finish = stopper.push(token)
            request.marks.append(len(stopper.text()))
            if finish:
                break
        request.text = stopper.text()
        if out.drawn is None:
            depths = [forest.depth[n] for n in layout.candidates[place]]
            notes = [self._note(item, depths, min(len(path), len(emitted)))]  # what follows the end counts not
        else:
            notes = runs.notes(item, plan.passes, passes, len(emitted))
        count = len(notes) if item.nodes else max(1, len(emitted))
        request.round += count
        request.stats.passes += count
        request.stats.generated += len(emitted)
        for note in notes:
            request.stats.count(note.offered, note.kept)
        self.totals.passed(notes, count, len(emitted))
        del request.logprobs[len(request.output) :]
        self.sampler.commit(request, emitted)
        if finish:
            self._finish(request, finish)
        return notes

    @staticmethod
    def _note(item: Item, depths: Sequence[int], kept: int) -> Note:
        """Offered and kept nodes per depth of one request."""
        deepest = max(depths, default=0)
        offered = [depths.count(d) for d in range(1, deepest + 1)]
        kept_at = [int(d <= kept) for d in range(1, deepest + 1)]
        return Note(item.request.id, item.drafter, item.nodes, item.depth, offered, kept_at)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish = reason
        self.desk.leave(request)
        self._forget(request)
        self.stoppers[request.id].finish()
        request.text = self.stoppers[request.id].text()
        del self.stoppers[request.id]
        self.sampler.drop(request)
        if request not in self._changed:
            self._changed.append(request)
