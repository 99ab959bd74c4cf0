"""Which route answers a path. FastAPI asks every route in turn, and those of an included router several times, which
takes as long as a short answer: clients that ask for many of those would hold up all others."""

from fastapi import APIRouter, FastAPI
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send


def include(app: FastAPI, router: APIRouter) -> None:
    """Add a router's routes one by one."""
    app.router.routes.extend(router.routes)


class RoutesByPath:
    """Routes whose path has no parameters, by that; whatever they do not answer is left to the router."""

    def __init__(self, router: Router) -> None:
        self.router, self._rest = router, router.middleware_stack
        self._count, self._by_path = 0, dict[str, list[Route]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route in self._of(scope["path"]):
                match, more = route.matches(scope)
                if match is Match.FULL:
                    scope.update(more)
                    await route.handle(scope, receive, send)
                    return
        await self._rest(scope, receive, send)

    def _of(self, path: str) -> list[Route]:
        if self._count != len(self.router.routes):
            self._count = len(self.router.routes)
            self._by_path = {}
            for route in self.router.routes:
                if isinstance(route, Route) and "{" not in route.path:
                    self._by_path.setdefault(route.path, []).append(route)
        return self._by_path.get(path, [])
