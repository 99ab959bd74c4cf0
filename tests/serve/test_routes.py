"""Paths are looked up by name, with the answers that FastAPI gives."""

from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from paceline.serve.routes import RoutesByPath, include


def app(quick: bool) -> FastAPI:
    made, one, two = FastAPI(), APIRouter(), APIRouter()

    @one.get("/a")
    @two.post("/a")
    @one.head("/a")
    @two.get("/b/c")
    @one.get("/b/{name:path}")
    async def answer(name: str = "-", q: int = 0) -> dict[str, str | int]:
        return {"name": name, "q": q}

    for router in (one, two):
        include(made, router) if quick else made.include_router(router)
    if quick:
        made.router.middleware_stack = RoutesByPath(made.router)
    return made


def test_same_answers() -> None:
    quick, plain = (TestClient(app(way), follow_redirects=False) for way in (True, False))
    for path in ("/a", "/a?q=3", "/a?q=x", "/a/", "/b/d", "/b/", "/b", "/nothing", "/", "//a", "/a%2F"):
        for method in ("GET", "POST", "HEAD", "DELETE", "OPTIONS"):
            mine, theirs = quick.request(method, path), plain.request(method, path)
            assert (mine.status_code, mine.content) == (theirs.status_code, theirs.content), (method, path)
            assert {**mine.headers, "allow": ""} == {**theirs.headers, "allow": ""}


def test_longer_name_wins_and_later_routes_are_found() -> None:
    made = app(quick=True)
    client = TestClient(made)
    assert client.get("/b/c").json() == {"name": "-", "q": 0}
    assert client.get("/late").status_code == 404
    made.get("/late")(lambda: {"late": True})
    assert client.get("/late").json() == {"late": True}
