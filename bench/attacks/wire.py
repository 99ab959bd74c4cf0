"""Plain HTTP for attacks, and the client that they must not hurt."""

import http.client
import json
import multiprocessing
import socket
import time
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

EVERY_S = 0.1
"""Between two requests of the client."""
TIMEOUT_S = 30.0


class Hurt(Exception):
    """What an attack did to somebody else."""


def post(
    url: str, path: str, body: bytes | dict[str, Any], key: str, *, timeout: float = TIMEOUT_S, **headers: str
) -> tuple[int, bytes]:
    """(status, body) of the answer; 0 and the reason where there is none."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers}
    try:
        connection.request("POST", path, data, given)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        return 0, str(error).encode()
    except http.client.HTTPException as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def opened(
    url: str, path: str, key: str, length: int, body: bytes = b"", kind: str = "application/json"
) -> socket.socket:
    """A connection on which a request has begun whose body has so many bytes; `body` of them are sent."""
    parts = urlsplit(url)
    made = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=TIMEOUT_S)
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n"
    made.sendall(f"{head}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode() + body)
    return made


def client(url: str, key: str, out: Connection, stop: Any, timeout: float) -> None:
    """Ten tokens every 100 ms; sends (seconds, status) of each."""
    body = {"prompt": "One two three", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    while not stop.is_set():
        started = time.monotonic()
        status, _ = post(url, "/v1/completions", body, key, timeout=timeout)
        seconds = time.monotonic() - started
        out.send((seconds, status))
        time.sleep(max(0.0, EVERY_S - seconds))


class Bystander:
    """That client in a process of its own. `take` is what it saw since the last call."""

    def __init__(self, url: str, key: str, timeout: float = TIMEOUT_S) -> None:
        """`timeout`: seconds that it waits for an answer."""
        self._timeout = timeout
        self._in, out = multiprocessing.Pipe(duplex=False)
        self._stop = multiprocessing.Event()
        self._process = multiprocessing.Process(target=client, args=(url, key, out, self._stop, timeout), daemon=True)
        self._process.start()

    def take(self) -> tuple[float, int, int]:
        """(longest wait in seconds, requests, those without an answer 200), at least one that ended after this call."""
        waits, bad = list[float](), 0
        first = True
        while first or self._in.poll():
            if not self._in.poll(self._timeout + 5):
                return self._timeout, len(waits), bad + 1
            seconds, status = self._in.recv()
            waits.append(seconds)
            bad += status != 200
            first = False
        return max(waits), len(waits), bad

    def close(self) -> None:
        self._stop.set()
        self._process.join(5)
        self._process.kill()
