"""Settings: one class behind flags, environment, TOML and the documented table."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app, options
from paceline.cli.options import EngineArgs
from paceline.core.errors import InputError
from paceline.serve.settings import Settings, entries, layered, load, table

DOCS = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_documented_table_is_the_class() -> None:
    assert table() in DOCS.read_text(encoding="utf-8")


def test_every_setting_is_a_flag() -> None:
    names = {p.name for p in options.options(Settings)}
    assert names == {e.name for e in entries()}
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "250"}).output
    for entry in entries():
        for flag in entry.flag.split("/"):
            assert f"{flag} " in text


def test_flag_beats_environment_beats_file_beats_default() -> None:
    environ = {"PACELINE_PORT": "2", "PACELINE_QUEUE_LIMIT": "2", "PACELINE_API_KEYS": "a, b"}
    table = {"port": 3, "queue_limit": 3, "drain_timeout": 3}
    made = layered(Settings, {"port": 1}, environ, table)
    assert (made.port, made.queue_limit, made.drain_timeout, made.max_choices) == (1, 2, 3.0, Settings().max_choices)
    assert made.api_keys == ("a", "b")


def test_environment_values_of_every_type() -> None:
    environ = {"PACELINE_OPEN_PROBES": "no", "PACELINE_REQUEST_TIMEOUT": "0.5", "PACELINE_LOG_FORMAT": "json",
               "PACELINE_TLS_CERT": "c", "PACELINE_TLS_KEY": "k", "PACELINE_MAX_PROMPT_TOKENS": "7"}  # fmt: skip
    made = layered(Settings, {}, environ, {})
    assert (made.open_probes, made.request_timeout, made.log_format) == (False, 0.5, "json")
    assert (made.tls_cert, made.max_prompt_tokens) == (Path("c"), 7)


@pytest.mark.parametrize(
    ("environ", "table", "words"),
    [
        ({"PACELINE_PORT": "http"}, {}, "PACELINE_PORT is 'http', but it must be a whole number"),
        ({"PACELINE_OPEN_PROBES": "maybe"}, {}, "PACELINE_OPEN_PROBES is 'maybe', but it must be true or false"),
        ({"PACELINE_LOG_FORMAT": "xml"}, {}, "one of auto, human, json"),
        ({}, {"port": "80"}, "port in the settings file is '80'"),
        ({}, {"port": True}, "port in the settings file is True"),
        ({}, {"api_keys": "secret"}, "a list of texts"),
        ({}, {"port": 70000}, r"port is 70000, but it must be in \[0, 65535\]"),
        ({}, {"queue_limit": -1}, "queue_limit is -1"),
        ({}, {"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({}, {"tls_cert": "c"}, "belong together"),
        ({}, {"api_keys": [" "]}, "not empty"),
    ],
)
def test_bad_values_are_named(environ: dict[str, str], table: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        layered(Settings, {}, environ, table)


def test_the_file_may_set_the_engine_and_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "paceline.toml"
    path.write_text('port = 1234\nmodel = "some/where"\nverifier = "chain"\n')
    assert load(Settings, {}, path, (EngineArgs,)).port == 1234
    assert load(EngineArgs, {"verifier": "exact"}, path, (Settings,)) == EngineArgs(model="some/where")
    path.write_text("prot = 1234\n")
    with pytest.raises(InputError, match=r"Unknown setting 'prot' in .*known are .*\bport\b"):
        load(Settings, {}, path, (EngineArgs,))
    path.write_text("port = \n")
    with pytest.raises(InputError, match="is not TOML"):
        load(Settings, {}, path)
    with pytest.raises(InputError, match="cannot be read"):
        load(Settings, {}, tmp_path / "absent.toml")


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nsk-one\n\nsk-two # theirs\n")
    assert Settings(api_keys=("sk-zero",), api_key_file=path).keys() == ("sk-zero", "sk-one", "sk-two")
    path.write_text("# none\n")
    with pytest.raises(InputError, match="holds no key"):
        Settings(api_key_file=path).keys()


def test_the_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(json.dumps("no table"))
    for args, words in (
        (["--port", "-1"], "port is -1"),
        (["m", "--model", "m"], "given twice"),
        (["--config", str(path)], "not TOML"),
        (["--tls-cert", "c"], "belong together"),
        (["--host", "no.such.host.invalid"], "choose others"),
    ):
        result = CliRunner().invoke(app, ["serve", *args])
        assert result.exit_code == 2 and words in result.stderr, result.output
