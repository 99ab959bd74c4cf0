"""HEAD wherever monitors and clients look whether a server lives: the GET's status and headers, and no body."""

import http.client
from urllib.parse import urlsplit

import pytest

DOORS = (
    "/", "/docs", "/health", "/ready", "/metrics", "/version", "/stats", "/stats/history", "/v1/models",
    "/v1/models/demo", "/api/tags", "/api/ps", "/api/version",
)  # fmt: skip


def asked(url: str, method: str, path: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", [*DOORS, "/v1/models/none"])
def test_head_is_get_without_a_body(url: str, path: str) -> None:
    status, kind, body = asked(url, "GET", path)
    assert asked(url, "HEAD", path) == (status, kind, b"") and body
    assert status == (404 if path.endswith("none") else 200 if path != "/ready" else status)
