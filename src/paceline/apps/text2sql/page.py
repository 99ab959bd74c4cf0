"""A web page for one database: the question, the query, the table, and the trace of stages."""

from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, StringConstraints
from starlette.middleware.base import RequestResponseEndpoint

from ..common.cli import AppAsked
from ..common.local import fault
from .pipeline import SqlPipeline, SqlPlan

HTML = Path(__file__).parent / "templates" / "page.html"


class SqlPageBefore(BaseModel):
    question: Annotated[str, StringConstraints(max_length=2000)]
    sql: Annotated[str, StringConstraints(max_length=8000)]


class SqlPageQuestion(BaseModel):
    """`before`: what the question corrects or continues."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
    before: SqlPageBefore | None = None


def create(pipeline: SqlPipeline) -> FastAPI:
    """The application. Everything from the database or the model reaches the page as text, never as markup."""
    from .command import as_dict

    app = FastAPI(title="Text to SQL", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def checked(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuses what other web pages may send: see `fault`."""
        wrong = fault(request.headers.get("host", ""), request.method, request.headers.get("content-type", ""))
        if wrong is not None:
            return JSONResponse({"error": {"message": wrong[1]}}, wrong[0])
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
        before = (body.before.question, body.before.sql) if body.before is not None else None
        return as_dict(await pipeline.answer(body.question, before))

    return app


async def serve(asked: AppAsked, plan: SqlPlan, db: Path | str, port: int, describe: Path | None = None) -> None:
    """Until it is interrupted; on this machine only."""
    from .command import pipeline

    async with asked.client() as client:
        app = create(pipeline(client, plan, db, describe))
        await uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="info")).serve()
