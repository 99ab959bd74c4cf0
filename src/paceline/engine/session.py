"""`Session`: the door of an engine. It checks what enters, follows what each output may show, and sees requests out."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paceline.cache.cache import Cache
from paceline.core.component import Component, Model
from paceline.core.errors import CapacityError, InputError
from paceline.core.params import SamplingParams
from paceline.core.plan import Item
from paceline.core.request import Request
from paceline.core.result import Result
from paceline.engine.adapters import Adapters
from paceline.engine.components import stateful
from paceline.engine.config import EngineConfig
from paceline.engine.detokenize import Detokenizer
from paceline.engine.drafters import DrafterPool
from paceline.engine.judge import Judge
from paceline.engine.stop import Stopper
from paceline.schedule import policies as schedules


class Session:
    """Owns what an engine keeps of each request apart from its lease: ids, and where its text may stop. One thread owns
    it."""

    def __init__(
        self, model: Model, config: EngineConfig, judge: Judge, drafters: DrafterPool, cache: Cache,
        *, tokenizer: Any, eos: Collection[int],
    ) -> None:  # fmt: skip
        self.model, self.config, self.judge, self.drafters, self.cache = model, config, judge, drafters, cache
        self.tokenizer, self.eos = tokenizer, frozenset(eos)
        self.stoppers: dict[int, Stopper] = {}
        self.requests: dict[int, Request] = {}
        """Requests that have not ended, by id."""
        self._next_id = 0
        self.adapters = Adapters(model)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, now: float, lineage: tuple[int, ...] = (), offset: int = 0
    ) -> list[Request]:
        """The `params.n` requests of one prompt (token ids). Raises InputError, RefusalError or CapacityError when it
        cannot be served; nothing is kept then."""
        drafter, verifier = params.drafter or self.config.drafter, params.verifier or self.config.verifier
        self.check_prompt(prompt)
        schedules.check_wishes(params, self.config.order)
        arms = self.drafters.arms(drafter, verifier)
        extra_key, adapter, slot = self.adapters.key(params.tenant, params.adapter, now)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        room = self.model.max_len - len(prompt)
        most = room if params.max_tokens else max(1, min(room, self.longest - len(prompt)))
        requests = [
            Request(
                self._next_id + sample,
                list(prompt),
                params,
                seed,
                eos=self.eos,
                lineage=(*lineage, sample) if params.n > 1 else lineage,
                offset=offset,
                group=self._next_id,
                drafter=drafter,
                arms=arms,
                verifier=verifier,
                max_tokens=min(room, params.max_tokens or most),
                arrival=now,
                key=params.user,
                extra_key=extra_key,
                adapter=adapter,
                adapter_slot=slot,
            )
            for sample in range(params.n)
        ]
        self.admit(requests)
        self._next_id += params.n
        return requests

    def admit(self, requests: Sequence[Request]) -> None:
        """Take requests in, with whatever output they have; raises as `submit`."""
        for request in requests:
            self.check_capacity(len(request.prompt), request.max_tokens + request.shift)
        stoppers = {r.id: Stopper(r, self.detokenizer(r)) for r in requests}
        for request in requests:
            self.judge.sampler.admit(request)
            own = bool(request.adapter) and self.adapters.parts(request.adapter)
            request.layers = request.adapter if own else ""
            runs = "run" in self.model.abilities and (not own or getattr(self.model, "runs_chains", False))
            request.judge_free = runs and self.judge.judge_free(request)
        self.stoppers.update(stoppers)
        self.requests.update({request.id: request for request in requests})
        for request in requests:
            self.adapters.hold(request)

    def retell(self, request: Request, text: str | None) -> None:
        """Follow the output of a request that comes from elsewhere, token by token: its text and where each token ended
        in it. `text`: what could be shown there. InputError where it is another one."""
        output, request.output = request.output, []
        try:
            stopper = Stopper(request, self.detokenizer(request))
        finally:
            request.output = output
        request.marks = []
        for token in output:
            stopper.extend([token])
            request.marks.append(len(stopper.text()))
        request.text = stopper.text()
        if text is not None and self.tokenizer is not None and text != request.text:
            raise InputError("The parked request's text is another one by this tokenizer; resume it where it is alike.")
        self.stoppers[request.id] = stopper

    def number(self) -> int:
        """The id of one more request."""
        self._next_id += 1
        return self._next_id - 1

    def live(self, number: int) -> Request:
        """The request of this id. InputError when it is not known, or has ended."""
        if number not in self.requests:
            raise InputError(f"There is no request {number} here, or it has ended.")
        return self.requests[number]

    def extend(self, request: Request, tokens: Sequence[int]) -> None:
        """Tokens have joined the output that the model has not drawn."""
        stopper = self.stoppers[request.id]
        stopper.max_tokens = request.max_tokens + request.shift
        stopper.extend(tokens)
        request.text = stopper.text()
        request.marks += [len(request.text)] * len(tokens)
        self.judge.sampler.commit(request, tokens)

    def again(self, request: Request) -> None:
        """A text has changed: follow it from its beginning."""
        self.judge.sampler.drop(request)
        self.judge.sampler.admit(request)
        self.stoppers[request.id] = Stopper(request, self.detokenizer(request))
        request.text = self.stoppers[request.id].text()

    def ends(self, number: int) -> frozenset[int]:
        """Tokens that end a request."""
        return self.stoppers[number].ids

    def read(self, items: Sequence[Item], results: Sequence[Result]) -> None:
        """How many tokens of each result its output gets, up to the first that ends the request: `emitted`, `finish`.
        The text follows."""
        for item, result in zip(items, results):
            request, stopper = item.request, self.stoppers[item.request.id]
            for token in result.tokens:
                if token < 0:
                    result.finish = "error"
                    request.error = request.error or self.judge.sampler.empty_message(request)
                    break
                result.emitted += 1
                result.finish = stopper.push(token)
                request.marks.append(len(stopper.text()))
                if result.finish:
                    break
            request.text = stopper.text()

    def settle(self, items: Sequence[Item], results: Sequence[Result]) -> list[Request]:
        """After the outputs have grown: processors follow, and requests that ended are seen out. Those that changed."""
        changed = []
        for item, result in zip(items, results):
            request = item.request
            if not result.tokens and request.finish is None:
                continue
            del request.logprobs[len(request.output) :]
            self.judge.sampler.commit(request, result.tokens[: result.emitted])
            if request.finish is not None:
                self.leave(request)
            changed.append(request)
        return changed

    def leave(self, request: Request) -> None:
        """A request has ended, for whatever reason."""
        stopper = self.stoppers.pop(request.id)
        del self.requests[request.id]
        if request.finish != "parked":  # what may become a stop string is shown where it goes on
            stopper.finish()
        request.text = stopper.text()
        self.judge.sampler.drop(request)
        self.drafters.forget(request)
        self.adapters.release(request)

    def disown(self, request: Request) -> None:
        """Forget a request whose admission failed, as far as it had come."""
        self.stoppers.pop(request.id, None)
        if self.requests.pop(request.id, None) is not None:
            self.adapters.release(request)
        self.judge.sampler.drop(request)

    def detokenizer(self, request: Request) -> Detokenizer | None:
        if self.tokenizer is None:
            return None
        return Detokenizer(self.tokenizer, request.params.skip_special_tokens, request.prompt)

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """InputError for a prompt that cannot be served."""
        if not prompt:
            raise InputError("The prompt is empty; give at least one token.")
        if len(prompt) >= self.model.max_len:
            raise InputError(
                f"The prompt has {len(prompt)} tokens, but the context holds {self.model.max_len} with at least one "
                "to generate; shorten it."
            )
        self.check_tokens(prompt)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """InputError for a token id outside the vocabulary."""
        bad = next((t for t in tokens if not 0 <= t < self.model.vocab_size), None)
        if bad is not None:
            raise InputError(f"Token id {bad} is outside the vocabulary [0, {self.model.vocab_size}).")

    @property
    def longest(self) -> int:
        """Tokens of the longest text that fits the context and the cache."""
        return min(self.model.max_len, self.config.blocks * self.config.block_size)

    def check_capacity(self, prompt: int, output: int) -> None:
        """A request alone, at its longest, must fit the context and the cache: then pre-emption can make room."""
        if prompt + output > self.model.max_len:
            raise InputError(
                f"{prompt} tokens of prompt and {output} of output are more than the context of {self.model.max_len}; "
                "shorten the prompt or lower max_tokens."
            )
        most = self.cache.blocks_for(prompt + output)
        if most > self.config.blocks:
            per_block = block_bytes(self.drafters.host.components, self.config.block_size)
            raise CapacityError(
                f"The request can grow to {prompt + output} tokens, which needs {most * per_block:,} bytes of K/V "
                f"cache, but the budget is {self.config.blocks * per_block:,}; lower max_tokens or raise memory."
            )


def block_bytes(components: Mapping[str, Component], size: int) -> int:
    """Bytes of a block of `size` tokens, all components together: K/V, and the state after it."""
    states = sum(it.state_bytes for it in stateful(components).values())
    return size * sum(it.kv_bytes_per_token for it in components.values()) + states
