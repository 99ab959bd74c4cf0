"""A web page for one database: the question, the query, the table, and the trace of stages."""

from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, StringConstraints
from starlette.middleware.base import RequestResponseEndpoint

from paceline.serve.admission import Hosts
from paceline.serve.body import check_type
from paceline.serve.errors import ApiError, error_response

from ..common.cli import AppAsked
from .pipeline import SqlPipeline, SqlPlan

HTML = Path(__file__).parent / "templates" / "page.html"


class SqlPageQuestion(BaseModel):
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]


def create(pipeline: SqlPipeline) -> FastAPI:
    """The application. Everything from the database or the model reaches the page as text, never as markup."""
    from .command import as_dict

    app = FastAPI(title="Text to SQL", docs_url=None, redoc_url=None, openapi_url=None)
    hosts = Hosts("127.0.0.1", False, ())

    @app.middleware("http")
    async def checked(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Only pages of this machine: see `Hosts`; and a body must be called JSON, which other pages may not send."""
        try:
            hosts.check(request.headers.get("host", ""))
            if request.method == "POST":
                check_type(request.headers.get("content-type", ""))
        except ApiError as error:
            return error_response(error)
        return await call_next(request)

    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"

    @app.get("/")
    def home() -> HTMLResponse:
        return HTMLResponse(HTML.read_text(encoding="utf-8"), headers={"Content-Security-Policy": policy})

    @app.get("/schema")
    def schema() -> dict[str, str]:
        return {"database": pipeline.database.path.name, "schema": pipeline.index.schema.show({})}

    @app.post("/ask")
    async def ask(body: SqlPageQuestion) -> dict[str, Any]:
        return as_dict(await pipeline.answer(body.question))

    return app


async def serve(asked: AppAsked, plan: SqlPlan, db: Path, port: int) -> None:
    """Until it is interrupted; on this machine only."""
    from .command import pipeline

    async with asked.client() as client:
        app = create(pipeline(client, plan, db))
        await uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="info")).serve()
