"""Plain HTTP for tests: what was answered, as it was."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.patience import PATIENCE_S


def send(url: str, data: bytes | None = None, content_type: str | None = "application/json") -> tuple[int, Any]:
    """(status, parsed body) of a GET, or of a POST of `data`."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    if content_type is None and data is not None:
        headers["Content-Type"] = ""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def post(url: str, body: Any) -> tuple[int, Any]:
    return send(url, json.dumps(body).encode())


def events(url: str, body: dict[str, Any]) -> list[Any]:
    """The parsed events of a stream, without the closing [DONE], which must be there."""
    request = urllib.request.Request(
        url, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        *parts, done, rest = answer.read().split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]
