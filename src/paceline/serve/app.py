"""The HTTP face of an engine."""

from importlib.metadata import version

from fastapi import FastAPI

from paceline.engine.async_llm import AsyncLLM
from paceline.serve import (
    api_docs,
    chat,
    completions,
    conversations,
    embeddings,
    infill,
    lora,
    message_api,
    models,
    ollama_api,
    playground,
    ranking,
    response_api,
    slots,
)
from paceline.serve.errors import install_errors
from paceline.serve.operation import install
from paceline.serve.routes import include
from paceline.serve.server import ServedHost, Server
from paceline.serve.settings import Settings
from paceline.serve.store import Store
from paceline.serve.wire import leniency


def create_app(llm: AsyncLLM | ServedHost, settings: Settings | None = None) -> FastAPI:
    """An application that serves `llm`, one model or several. The caller closes `llm` after it."""
    settings = settings or Settings()
    host: ServedHost = Server(llm, settings) if isinstance(llm, AsyncLLM) else llm
    app = FastAPI(title="Paceline", version=version("paceline"), openapi_url=None, docs_url=None, redoc_url=None)
    app.state.host = host
    app.state.responses = Store(settings.response_store_bytes)
    leniency.on = settings.unknown_parameters == "warn"
    install_errors(app)
    for module in (
        completions,
        chat,
        response_api,
        conversations,
        message_api,
        embeddings,
        ranking,
        infill,
        lora,
        slots,
        models,
        playground,
        api_docs,
        ollama_api,
    ):
        include(app, module.router)
    install(app, host, settings)
    return app
