"""What every route needs: the engine of the request's model, the settings, and how the model is called."""

import asyncio
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.adapters import Adapters
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.door import DOOR
from paceline.engine.text import Text
from paceline.engine.totals import Snapshot, Totals
from paceline.serve.calls import HttpCall
from paceline.serve.errors import ApiError
from paceline.serve.pools import Pools, tenant_now
from paceline.serve.prompts import check_length, longest
from paceline.serve.settings import Settings
from paceline.serve.tokens import Tokens

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Counters and gauges of one model, for `/metrics`."""

    totals: Totals
    running: int
    waiting: int
    loaded: bool = True
    loads: int = 1
    unloads: int = 0


class ServedHost(Protocol):
    """Host of the served models: one model (`Server`) or several (`fleet.Fleet`). For the event loop."""

    settings: Settings
    pools: Pools

    @property
    def max_len(self) -> int:
        """Tokens of the longest context."""

    @property
    def model(self) -> str:
        """The name of the first."""

    @property
    def alive(self) -> bool:
        """False once an engine thread has died."""

    def stuck(self) -> float:
        """Seconds that an engine with work has been at one step; 0 while all are idle."""

    @property
    def snapshot(self) -> Snapshot:
        """All engines together; counters never fall."""

    @property
    def max_requests(self) -> int:
        """Samples that are decoded at once."""

    async def of(self, name: str | None) -> "Server":
        """The model of a request, ready to serve it, and kept until the call that asks has ended. No name means the
        first. Raises ApiError 404 for a name that is not served."""

    def cards(self) -> list[dict[str, Any]]:
        """`/v1/models`: one entry a name."""

    def figures(self) -> dict[str, ModelFigures]:
        """{model: its figures}; counters never fall."""

    def first(self) -> AsyncLLM | None:
        """The engine that `/stats` describes, if one is loaded."""

    async def warm_up(self) -> None:
        """A short generation, so that everything is compiled and loaded."""


class Server:
    """One served model: its engine, its text half and the settings of its routes."""

    def __init__(self, llm: AsyncLLM, settings: Settings, pools: Pools | None = None) -> None:
        """`pools`: of the host, where it has several servers."""
        self.llm, self.settings = llm, settings
        self.created = int(time.time())
        self.text: Text = llm.llm.text
        self.text.encode("")  # settles the tokenizer's own state: from now on it is only read, by several threads
        self.tokens = Tokens(self.text.tokenizer)
        self.pools = pools or Pools(settings.queue_limit, settings.parted)
        self.adapter = ""
        """Name of the adapter that this view of the server is for; empty: the model itself."""
        self.lora_tenants = dict[str, str]()
        """{adapter: tenant that loaded it over HTTP}"""
        self.lora_turn = asyncio.Lock()
        """One adapter is read at a time: its file is in memory as a whole."""
        self.text_bound = longest(self.text, self.tokens, settings.max_prompt_tokens or self.max_len)

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the model is served; answers carry the first."""
        return self.settings.served_model_name or (served_name(self.llm, self.settings),)

    @property
    def model(self) -> str:
        return self.adapter or self.names[0]

    @property
    def adapters(self) -> Adapters:
        return self.llm.llm.engine.session.adapters

    async def read_adapter(self, path: Path, draft: Path | None) -> Any:
        """What `enter_adapter` takes: an adapter's weights, checked against the model."""
        return await asyncio.to_thread(self.adapters.read, path, draft)

    async def enter_adapter(self, name: str, path: Path, weights: Any, replace: bool, draft: Path | None) -> None:
        """Serve what was read under this name."""
        await self.llm.call(lambda: self.adapters.enter(name, path, weights, replace, draft))

    async def remove_adapter(self, name: str) -> None:
        """Stop serving an adapter."""
        await self.llm.call(lambda: self.adapters.remove(name))

    def called(self, name: str | None) -> "Server":
        """View of this server for requests that name an adapter."""
        if name is None or name in self.names or not self.adapters.serves(name):
            return self
        view = copy(self)
        view.adapter = name
        return view

    def remedy(self, option: str) -> str:
        """What to do where something is missing that an option brings, in words."""
        return f"start the server with {option}"

    @property
    def alive(self) -> bool:
        return self.llm.alive

    def stuck(self) -> float:
        return self.llm.stuck()

    @property
    def snapshot(self) -> Snapshot:
        return self.llm.snapshot

    @property
    def max_requests(self) -> int:
        return self.llm.llm.engine.config.max_requests

    async def of(self, name: str | None) -> "Server":
        self.check_model(name)
        call = DOOR.get()
        if isinstance(call, HttpCall):
            call.decode = self.text.decode
        return self.called(name)

    def cards(self) -> list[dict[str, Any]]:
        return [*(self.card(name) for name in self.names), *self.adapter_cards(self.names[0])]

    def adapter_cards(self, parent: str) -> list[dict[str, Any]]:
        """Entries of the adapters of a model that is served under this name. Tenants do not see where they lie."""
        roots = {name: name if tenant_now() else at for name, at in self.adapters.places.items()}
        return [{**self.card(name), "root": root, "parent": parent} for name, root in roots.items()]

    def card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "paceline",
            "max_model_len": self.llm.llm.engine.session.longest,
        }

    def figures(self) -> dict[str, ModelFigures]:
        now = self.snapshot
        return {self.model: ModelFigures(now.totals, now.running, now.waiting)}

    def first(self) -> AsyncLLM:
        return self.llm

    async def warm_up(self) -> None:
        wish = SamplingParams(max_tokens=WARM_UP_TOKENS, ignore_eos=True, temperature=0)
        prompt = self.text.encode("Hello")
        await self.llm.generate(prompt, wish)
        if (slots := self.llm.llm.engine.operations.slots) is not None:
            await self.llm.call(lambda: slots.leave(prompt))

    @property
    def max_len(self) -> int:
        return self.llm.llm.engine.model.max_len

    def check_model(self, name: str | None) -> None:
        """Raise 404 for another model than the served one; no name means that one."""
        if name is not None and name not in self.names and not self.adapters.serves(name):
            raise unknown_model(name, [*self.names, *self.adapters.named])

    def check_choices(self, prompts: int, n: int) -> None:
        most = self.settings.max_choices
        if prompts * n > most:
            message = f"n is {n} with {prompts} prompts, but one request may ask for at most {most} texts."
            raise ApiError(400, message, param="n")

    def check_places(self, count: int) -> None:
        """Raise ApiError 429 before anything is done for a request that would find no place in the engine."""
        door = DOOR.get()
        if isinstance(door, HttpCall):
            door.check_places(count)

    async def ready(self, make: Callable[[], SamplingParams], size: int, shaped: bool) -> SamplingParams:
        """What `make` makes, in a pool, with its grammar compiled and its bad words spelt: neither the loop nor the
        engine waits for that. `size`: of what it is made from; `shaped`: may there be a grammar?"""
        sampler, call = self.llm.llm.engine.judge.sampler, DOOR.get()
        client = call.owner if isinstance(call, HttpCall) else ""

        def work() -> tuple[SamplingParams, object]:
            params = make()
            if self.adapter:
                params = replace(params, adapter=self.adapter)
            if params.allowed_tokens is not None and len(params.allowed_tokens) > sampler.vocab_size:
                raise InputError(f"allowed_tokens has {len(params.allowed_tokens)} ids, more than the vocabulary has.")
            for word in params.bad_words:
                if isinstance(word, str):
                    check_length(word, self.text_bound, "bad_words")
            if any(isinstance(word, str) for word in params.bad_words):
                params = replace(params, bad_words=sampler.spell(params.bad_words))
            if params.grammar is None:
                return params, None
            tenant = call.salted(params) if isinstance(call, HttpCall) else params.tenant
            return params, sampler.grammars.compile(params.grammar, tenant=tenant, client=client)

        if shaped and sampler.grammars.full(client):
            message = "The grammars of other requests take all room, or yours your share of it; try again in 2 s."
            raise ApiError(429, message, code="host_busy", headers={"Retry-After": "2"})
        pool = self.pools.grammars if shaped else self.pools.texts
        params, held = await pool.run(work, size)
        if isinstance(call, HttpCall):
            call.held = held
        return params


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    message = f"Model {name[:100]!r} is not served here; use {' or '.join(map(repr, names))}."
    return ApiError(404, message, param="model", code="model_not_found")


def served_name(llm: AsyncLLM, settings: Settings) -> str:
    """The model's first name; where the settings do not say, the last part of its path or hub id."""
    if settings.served_model_name:
        return settings.served_model_name[0]
    given = llm.llm.options.model
    return "demo" if given is None else Path(given).name


async def of_app(request: Request) -> ServedHost:
    """The served models. A coroutine, since FastAPI would give a function to a thread."""
    host: ServedHost = request.app.state.host
    return host


Here = Annotated[ServedHost, Depends(of_app)]
