"""`paceline train` and `paceline route`: what they make, and what they refuse."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.cli.train import COMMANDS
from paceline.cluster.learn.dispatcher import load as load_dispatcher
from paceline.cluster.learn.order import SHIPPED_ORDER
from paceline.cluster.learn.order import load as load_order


def refused(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"all", "drafter", "fit", "list"}))
def test_training_refuses_what_would_fail_at_its_end(name: str, tmp_path: Path) -> None:
    assert "minutes is 0" in refused("train", name, "--minutes", "0", "-o", str(tmp_path / "x"))
    assert "cannot be written" in refused("train", name, "-o", str(tmp_path))
    assert "cannot be written" in refused("train", name, "-o", str(tmp_path / "absent" / "x"))


@pytest.mark.full
def test_an_order_is_trained_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "order.safetensors"
    result = CliRunner().invoke(app, ["train", "workflow-order", "--minutes", "0.01", "-o", str(path)])
    assert result.exit_code == 0 and "parameters after" in result.output
    load_order(path)


@pytest.mark.full
def test_a_rule_is_trained_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="needs paceline[jssp]")
    path = tmp_path / "jssp.safetensors"
    args = ["train", "jssp", "--minutes", "0.01", "--solver-seconds", "0.1", "-o", str(path)]
    assert CliRunner().invoke(app, args).exit_code == 0
    load_dispatcher(path)


def test_weights_of_the_learned_planner_are_shipped_with_their_card() -> None:
    assert load_order()
    assert SHIPPED_ORDER.name in (SHIPPED_ORDER.parent / "README.md").read_text(encoding="utf-8")


def test_routing_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    for args, says in (
        ([url, url], "named twice"),
        ([url, "--slots", "0"], "slots must be"),
        ([url, "--planner", "best"], "Unknown workflow planner"),
        ([url, "--policy", "heft", "--order", str(tmp_path)], "takes none"),
        ([url, "--alpha", "3"], "alpha is 3"),
        (["ftp://x"], "url is"),
        ([url, "--log", str(tmp_path)], "cannot be written"),
        ([url, "--planner", "learned", "--order", str(tmp_path / "absent")], "is not an order"),
        ([url, "--lora-root", "x"], "No such option"),  # the engines' own
        ([url, "--datastore", "x"], "No such option"),
    ):
        assert says in refused("route", *args)


def test_a_cluster_refuses_what_it_does_not_serve() -> None:
    assert "engines is 0, but it must be in [1, 1024]" in refused("cluster", "up", "--engines", "0")
    assert "does not serve small" in refused("cluster", "up", "--small", "x")
    assert "does not serve index" in refused("cluster", "up", "--index", "a")
    assert "No cluster answers" in refused("cluster", "status", "--url", "http://127.0.0.1:9")
