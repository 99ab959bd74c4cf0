"""What an actor asks its own server, without Ray: the server must take it for one of its own machine."""

from typing import Any

from paceline.cluster.control.ray_engine import through
from paceline.serve.admission import Hosts
from paceline.serve.settings import Settings


async def test_an_actors_requests_name_a_host_that_the_server_answers_to() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"])[b"host"].decode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    assert await through(app, "/v1/models", None) == (200, b"{}")
    Hosts(Settings().host, False, ()).check(seen[0])
