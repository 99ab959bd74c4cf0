"""What every route needs: the engine, the settings, and how the model is called."""

import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from paceline.engine.async_llm import AsyncLLM
from paceline.serve.errors import ApiError
from paceline.serve.settings import Settings


@dataclass(frozen=True)
class Server:
    llm: AsyncLLM
    settings: Settings
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self.settings.model_name or self.llm.llm.text.path.name

    def check_model(self, name: str | None) -> None:
        """Raise 404 for another model than the served one; no name means that one."""
        if name is not None and name != self.model:
            message = f"Model {name!r} is not served here; use {self.model!r}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_choices(self, prompts: int, n: int) -> None:
        most = self.settings.max_choices
        if prompts * n > most:
            raise ApiError(
                400, f"n is {n} with {prompts} prompts, but one request may ask for {most} texts.", param="n"
            )


def of_app(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Here = Annotated[Server, Depends(of_app)]
