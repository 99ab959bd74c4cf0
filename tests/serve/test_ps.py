"""`paceline ps` beside a real server."""

from http.client import BadStatusLine
from importlib import import_module
from typing import Any

import pytest

from paceline.cli.ps import serves
from tests.serve.process import SERVE, said, spawned


def test_running_servers_are_listed() -> None:
    """The server's context is what its cache can keep, said once on its standard error."""
    serve = [*SERVE, "--blocks", "20", "--block-size", "16"]
    with spawned(*serve) as (url, server):
        code, out, error = said("-m", "paceline", "ps")
        lines = [line.split() for line in out.splitlines()]
        assert code == 0, error
        assert ["demo", "loaded", "320", url, str(server.pid)] in lines
        code, out, _ = said("-m", "paceline", "ps", f"{url}/v1")
        assert code == 0 and out.splitlines()[1].split() == ["demo", "loaded", "320", url]
        server.terminate()
        _, said_there = server.communicate(timeout=60)
        assert said_there.count("No text can be longer than 320 tokens") == 1
    code, _, error = said("-m", "paceline", "ps", url)
    assert code == 2 and "No server answers" in error


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (["/usr/bin/python3", "/usr/bin/paceline", "serve", "m"], True),
        (["python3", "-m", "paceline", "serve"], True),
        (["paceline", "serve"], True),
        (["paceline", "cluster", "up", "m"], True),
        (["python3", "-m", "paceline", "cluster", "up"], True),
        (["paceline", "cluster", "status"], False),
        (["python3", "-m", "paceline", "ps"], False),
        (["grep", "x", "paceline", "serve"], False),
        ([], False),
    ],
)
def test_whose_command_lines(words: list[str], is_one: bool) -> None:
    assert serves(words) is is_one


def test_where_a_server_listens_to_others_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of a cluster listens to its engines, too; one that answers nowhere is told once a place."""

    def models(url: str) -> list[dict[str, Any]]:
        if not url.endswith(":8000"):
            raise BadStatusLine("gRPC") if url.endswith(":7001") else OSError("no HTTP here")
        return [{"id": "demo"}]

    places = [("http://127.0.0.1:7001", "5"), ("http://127.0.0.1:8000", "5"), ("http://127.0.0.1:9000", "6")]
    command = import_module("paceline.cli.ps")  # the package has a function of this name
    monkeypatch.setattr(command, "running", lambda: iter(places))
    monkeypatch.setattr(command, "models", models)
    command.ps(None)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["demo", "loaded", "http://127.0.0.1:8000", "5"], ["?", "does", "not", "answer", "http://127.0.0.1:9000", "6"],
    ]  # fmt: skip
