"""What every route needs: the engine, the settings, and how the model is called."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.door import DOOR
from paceline.engine.text import Text
from paceline.serve.calls import Call
from paceline.serve.errors import ApiError
from paceline.serve.pools import Pools
from paceline.serve.prompts import check_length, longest
from paceline.serve.settings import Settings
from paceline.serve.tokens import Tokens


class Server:
    def __init__(self, llm: AsyncLLM, settings: Settings) -> None:
        self.llm, self.settings = llm, settings
        self.created = int(time.time())
        self.text: Text = llm.llm.text
        self.text.encode("")  # settles the tokenizer's own state: from now on it is only read, by several threads
        self.tokens = Tokens(self.text.tokenizer)
        self.pools = Pools()
        self.most_characters = longest(self.text, self.tokens, settings.max_prompt_tokens or self.max_len)

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return served_name(self.llm, self.settings)

    @property
    def max_len(self) -> int:
        return self.llm.llm.engine.model.max_len

    def check_model(self, name: str | None) -> None:
        """Raise 404 for another model than the served one; no name means that one."""
        if name is not None and name != self.model:
            message = f"Model {name[:100]!r} is not served here; use {self.model!r}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_choices(self, prompts: int, n: int) -> None:
        most = self.settings.max_choices
        if prompts * n > most:
            message = f"n is {n} with {prompts} prompts, but one request may ask for at most {most} texts."
            raise ApiError(400, message, param="n")

    def check_places(self, count: int) -> None:
        """Raise ApiError 429 before anything is done for a request that would find no place in the engine."""
        door = DOOR.get()
        if isinstance(door, Call):
            door.gate.check(count)

    async def ready(self, make: Callable[[], SamplingParams], size: int, shaped: bool) -> SamplingParams:
        """What `make` makes, in a pool, with its grammar compiled and its bad words spelt: neither the loop nor the
        engine waits for that. `size`: of what it is made from; `shaped`: may there be a grammar?"""
        sampler = self.llm.llm.engine.judge.sampler

        def work() -> tuple[SamplingParams, object]:
            params = make()
            if params.allowed_tokens is not None and len(params.allowed_tokens) > sampler.vocab_size:
                raise InputError(f"allowed_tokens has {len(params.allowed_tokens)} ids, more than there are tokens.")
            for word in params.bad_words:
                if isinstance(word, str):
                    check_length(word, self.most_characters, "bad_words")
            if any(isinstance(word, str) for word in params.bad_words):
                params = replace(params, bad_words=sampler.spell(params.bad_words))
            held = None if params.grammar is None else sampler.grammars.compile(params.grammar)
            return params, held

        if shaped and sampler.grammars.full:
            message = "The grammars of other requests take all room; try again in 2 s."
            raise ApiError(429, message, code="host_busy", headers={"Retry-After": "2"})
        pool = self.pools.grammars if shaped else self.pools.texts
        params, held = await pool.run(work, size)
        door = DOOR.get()
        if isinstance(door, Call):
            door.held = held
        return params


def served_name(llm: AsyncLLM, settings: Settings) -> str:
    """What the model is called where the settings do not say: the last part of its path or hub id."""
    given = llm.llm.options.model
    return settings.model_name or ("demo" if given is None else Path(given).name)


def of_app(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Here = Annotated[Server, Depends(of_app)]
