"""The HTTP face of an engine."""

from importlib.metadata import version

from fastapi import FastAPI

from paceline.engine.async_llm import AsyncLLM
from paceline.serve import chat, completions, models
from paceline.serve.errors import install_errors
from paceline.serve.operation import install
from paceline.serve.server import Server
from paceline.serve.settings import Settings


def create_app(llm: AsyncLLM, settings: Settings | None = None) -> FastAPI:
    """An application that serves `llm`. The caller closes `llm` after it."""
    app = FastAPI(title="Paceline", version=version("paceline"), docs_url=None, redoc_url=None)
    app.state.server = Server(llm, settings or Settings())
    install_errors(app)
    for module in (completions, chat, models):
        app.include_router(module.router)
    install(app, llm, app.state.server.settings)
    return app
