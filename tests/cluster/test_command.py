"""`paceline serve --cluster` and `paceline cluster up`: what they take, and what they begin."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.cluster.live import actors, serve
from paceline.cluster.live.engines import Engines
from paceline.serve.settings import Settings


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What a command begins, in place of beginning it: the address to join, then what `run` gets."""
    out = list[Any]()

    def run(engines: Engines, count: int, options: Any, settings: Settings, sock: Any, *_: Any) -> int:
        sock.close()
        out.extend((engines, count, options, settings))
        return 7

    def join(address: str | None) -> actors.RaySession:
        out.append(address)
        return actors.RaySession("", tmp_path)

    monkeypatch.setattr(actors, "join", join)
    monkeypatch.setattr(serve, "run", run)
    return out


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("words", [("serve", "--cluster"), ("cluster", "up")])
def test_both_commands_begin_the_same(words: tuple[str, ...], began: list[Any]) -> None:
    code, text = said(*words, "--engines", "3", "--max-engines", "5", "--port", "0", "--address", "auto")
    assert code == 7, text
    address, engines, count, options, settings = began
    assert address == "auto" and count == 3 and settings.max_engines == 5 and options.model is None
    assert (engines.rule.fewest, engines.rule.most) == (3, 5)


def test_their_number_stays_unless_a_largest_one_is_given(began: list[Any]) -> None:
    assert said("serve", "--cluster", "--port", "0")[0] == 7
    address, engines, count, *_ = began
    assert address is None and count == 2 and engines.rule is None


@pytest.mark.parametrize("form", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    ("name", "flag", "given", "means"),
    [
        ("engines", "--engines", "4", 4),
        ("max_engines", "--max-engines", "6", 6),
        ("ray_address", "--address", "here:6379", "here:6379"),
        ("engine_cpus", "--engine-cpus", "0.5", 0.5),
    ],
)
def test_each_option_has_three_forms(
    form: str, name: str, flag: str, given: str, means: Any,
    began: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    words = ["serve", "--port", "0"]
    match form:
        case "flag":
            words += ["--cluster", flag, given]
        case "variable":
            monkeypatch.setenv("PACELINE_CLUSTER", "true")
            monkeypatch.setenv(f"PACELINE_{name.upper()}", given)
        case "file":
            value = f'"{given}"' if isinstance(means, str) else given
            (tmp_path / "a.toml").write_text(f"cluster = true\n{name} = {value}\n")
            words += ["--config", str(tmp_path / "a.toml")]
    code, text = said(*words)
    assert code == 7, text
    address, engines, count, _, settings = began
    assert getattr(settings, name) == means
    assert (address, count) == (settings.ray_address, settings.engines or 2)
    assert (engines.rule is not None) == (name == "max_engines")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("serve", "--engines", "2"), "engines is of a cluster; add cluster, or leave it out"),
        (("serve", "--max-engines", "3"), "max_engines is of a cluster"),
        (("serve", "--cluster", "--engines", "0"), "engines is 0, but it must be in [1, 1024]"),
        (("cluster", "up", "--engines", "3", "--max-engines", "2"), "max_engines is 2, but it must be"),
        (("serve", "--cluster", "--models", "a.toml"), "A cluster does not serve models"),
        (("serve", "--cluster", "--datastore", "a"), "A cluster does not serve datastore"),
        (("serve", "--cluster", "--index", "a"), "A cluster does not serve index"),
        (("cluster", "up", "--small", "a"), "A cluster does not serve small"),
        (("serve", "--cluster", "--kv-disk", "a:1G"), "A cluster does not serve kv_disk"),
        (("serve", "/no/such", "--cluster"), "/no/such is"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], why: str, began: list[Any]) -> None:
    code, text = said(*words, "--port", "0")
    assert code == 2 and why in text and not began, text


def test_a_key_for_clients_is_no_key_of_a_server(began: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets it for the server thinks that it is guarded."""
    monkeypatch.setenv("PACELINE_API_KEY", "k1")
    code, text = said("serve", "--cluster", "--port", "0")
    assert code == 2 and "PACELINE_API_KEY, the key that clients send" in text and not began
    monkeypatch.setenv("PACELINE_API_KEYS", "k1")
    assert said("serve", "--cluster", "--port", "0")[0] == 7 and began


class Refusing(BaseHTTPRequestHandler):
    """A server that refuses, as a cluster does, and one that is none."""

    def do_POST(self) -> None:
        assert self.headers["Authorization"] in (None, "Bearer k1")
        self.server.asked = self.headers["Authorization"]  # type: ignore[attr-defined]
        body = b'{"error": {"message": "There is no engine x."}}' if self.path == "/cluster/drain" else b"<html>"
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_what_a_cluster_refuses_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert said("cluster", "drain", "x", "--url", url) == (2, "paceline: error: There is no engine x.")
        code, text = said("cluster", "renew", "--url", url.removeprefix("http://"))
        assert code == 2 and "is no cluster (HTTP Error 400" in text and server.asked is None  # type: ignore[attr-defined]
        monkeypatch.setenv("PACELINE_API_KEY", "k1")
        assert said("cluster", "drain", "x", "--url", url) == (2, "paceline: error: There is no engine x.")
        assert server.asked == "Bearer k1"  # type: ignore[attr-defined]
        server.shutdown()
