"""`paceline ps` beside a real server."""

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
        (["python3", "-m", "paceline", "ps"], False),
        (["grep", "x", "paceline", "serve"], False),
        ([], False),
    ],
)
def test_whose_command_lines(words: list[str], is_one: bool) -> None:
    assert serves(words) is is_one
