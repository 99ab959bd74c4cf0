"""What every route needs: the engine, the settings, and how the model is called."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from paceline.core.params import SamplingParams
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.text import Text
from paceline.serve.errors import ApiError
from paceline.serve.settings import Settings
from paceline.serve.tokens import Tokens


class Server:
    def __init__(self, llm: AsyncLLM, settings: Settings) -> None:
        self.llm, self.settings = llm, settings
        self.created = int(time.time())
        self.text: Text = llm.llm.text
        self.text.encode("")  # settles the tokenizer's own state: from now on it is only read, by several threads
        self.tokens = Tokens(self.text.tokenizer)

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

    async def ready(self, make: Callable[[], SamplingParams]) -> SamplingParams:
        """What `make` makes, in the pool with its grammar compiled: neither the loop nor the engine waits for that."""

        def work() -> SamplingParams:
            params = make()
            if params.grammar is not None:
                self.llm.llm.engine.judge.sampler.grammars.compile(params.grammar)
            return params

        return await asyncio.to_thread(work)


def served_name(llm: AsyncLLM, settings: Settings) -> str:
    """What the model is called where the settings do not say: the last part of its path or hub id."""
    given = llm.llm.options.model
    return settings.model_name or ("demo" if given is None else Path(given).name)


def of_app(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Here = Annotated[Server, Depends(of_app)]
