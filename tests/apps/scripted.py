"""A server of OpenAI's protocol in a thread whose answers are a function of the request's body."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any]], Any]
"""From a body to a text, a list of texts (one per sample), or (status, error message)."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "scripted", "owned_by": self.server.owner}]})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        said = self.server.script(body)  # type: ignore[attr-defined]
        if isinstance(said, tuple):
            self.reply(said[0], {"error": {"message": said[1]}})
            return
        texts = said if isinstance(said, list) else [said] * (body.get("n") or 1)
        choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in texts]
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
        self.reply(200, {"choices": choices, "usage": usage})

    def reply(self, status: int, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def scripted(script: Script, owner: str = "paceline") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and the bodies that it was sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.script, server.bodies, server.owner = script, [], owner  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.bodies  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
