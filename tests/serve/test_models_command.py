"""`paceline serve --models FILE` as it is typed: a process, asked over HTTP."""

import http.client
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from paceline import LLM, SamplingParams
from paceline.cli import app
from paceline.engine.pair import DEMO
from paceline.model.pull import have
from tests.patience import PATIENCE_S
from tests.serve.http import post, send
from tests.serve.process import spawned

PROMPTS = ["Tom has 3 apples", "def add(a, b):", "A baker packs 6 rolls", "Once upon a time"]
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"model": str(DEMO / "target"), "draft": str(DEMO / "draft"), "dtype": "float32", "drafter": "model"},
    "lookup": {"model": str(DEMO / "target"), "dtype": "float32", "drafter": "ngram"},
    "small": {"model": str(DEMO / "draft"), "dtype": "float32"},
}


def toml(models: dict[str, dict[str, Any]], memory: str) -> str:
    lines = [f'memory = "{memory}"']
    for name, options in models.items():
        lines += [f"[models.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def wish(name: str, prompt: str) -> dict[str, Any]:
    return {"model": name, "prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three models of which two fit, and one that is not there."""
    file = tmp_path_factory.mktemp("fleet") / "models.toml"
    each = {name: {**options, "memory": "150M"} for name, options in MODELS.items()}
    file.write_text(toml({**each, "absent": {"model": str(file.parent / "absent"), "memory": "150M"}}, "300M"))
    with spawned("-m", "paceline", "serve", "--models", str(file), "--port", "0", "--max-requests", "4") as (url, _):
        yield url


def alone(models: dict[str, dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The answers of each model in an engine of its own."""
    found, params = {}, SamplingParams(max_tokens=24, temperature=0.8, seed=5)
    for name, options in models.items():
        with LLM(**options) as llm:
            for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, params, progress=False)):
                found[name, prompt] = answer.text
    return found


def slowly(url: str, wish: dict[str, Any]) -> str:
    """The text of a stream that is read byte by byte."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=PATIENCE_S)
    body = json.dumps({**wish, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer, read = connection.getresponse(), b""
    assert answer.status == 200, answer.read()
    while piece := answer.read(64):
        read += piece
        time.sleep(0.005)
    events = [line[6:] for line in read.decode().splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def storm(url: str, expected: dict[tuple[str, str], str], count: int) -> None:
    """So many requests in random order from four clients, one of which reads slowly; every answer is checked."""
    order = random.Random(1)
    names = sorted({name for name, _ in expected})
    wishes = [(order.choice(names), order.choice(PROMPTS)) for _ in range(count)]

    def client(index: int) -> list[tuple[tuple[str, str], str]]:
        mine = []
        for pair in wishes[index::4]:
            if index == 3:
                mine.append((pair, slowly(url, wish(*pair))))
                continue
            status, answer = post(url + "/v1/completions", wish(*pair))
            mine.append((pair, answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"))
        return mine

    with ThreadPoolExecutor(4) as pool:
        answers = [pair for part in pool.map(client, range(4)) for pair in part]
    assert len(answers) == count
    wrong = [(pair, text, expected[pair]) for pair, text in answers if text != expected[pair]]
    assert not wrong, f"{len(wrong)} of {count}, first {wrong[0]}"


def test_requests_from_four_clients(url: str) -> None:
    storm(url, alone(MODELS), 12)
    cards = {card["id"]: card for card in send(url + "/v1/models")[1]["data"]}
    assert sum(cards[name]["state"] == "loaded" for name in MODELS) == 2, cards
    assert sum(card["unloads"] for card in cards.values()) >= 1
    metrics = text_of(url + "/metrics")
    for name in MODELS:
        made = next(
            line
            for line in metrics.splitlines()
            if line.startswith(f'paceline_model_generation_tokens_total{{model="{name}"}}')
        )
        assert float(made.split()[1]) > 0, made


def text_of(url: str) -> str:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=PATIENCE_S)
    connection.request("GET", at.path)
    return connection.getresponse().read().decode()


def test_a_model_that_is_not_there_is_503_with_its_reason_and_tried_later(url: str) -> None:
    status, first = post(url + "/v1/completions", wish("absent", "a"))
    assert status == 503 and first["error"]["code"] == "model_not_loaded" and "absent" in first["error"]["message"]
    status, again = post(url + "/v1/completions", wish("absent", "a"))
    assert status == 503 and "next try is in" in again["error"]["message"]
    card = send(url + "/v1/models/absent")[1]
    assert card["state"] == "failed" and card["error"] and card["loads"] == 0
    assert post(url + "/v1/completions", wish("small", "a"))[0] == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\n[models.a]\n", "twice"),
        ("[models.a]\nmodel = 'x'\nmodel = 'y'\n", "twice"),
        ("[models.a]\ncolour = 1\n", "Unknown option 'colour' of model 'a'"),
        ("size = 1\n[models.a]\n", "Unknown setting 'size'"),
        ("memory = '40M'\n[models.a]\n[models.b]\n", "memory"),
        ("memory = '1G'\n[models.a]\nmemory = '2G'\n", "more than the"),
        ("memory = 'much'\n[models.a]\n", "memory"),
        ("memory = true\n[models.a]\n", "memory must be bytes"),
        ("idle_s = 'x'\n[models.a]\n", "idle_s"),
        ("models = 3\n", "no tables"),
        ("[models]\n", "at least one model"),
        ("[models.'']\n", "no name may be empty"),
        ("idle_s = nan\n[models.a]\n", "idle_s"),
        ("memory = 'inf'\n[models.a]\n", "memory"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    done = CliRunner().invoke(app, ["serve", "--models", str(file), "--port", "0"])
    assert done.exit_code == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.output


@pytest.mark.full
def test_real_models(tmp_path: Path) -> None:
    """SmolLM2 with the head that comes with it beside the demo pair and one of its halves."""
    if have("smollm2") is None:
        pytest.skip("smollm2 is not in the catalogue's folder; paceline pull smollm2 fetches it")
    models = {"smollm2": {"model": "smollm2"}, "demo": {}, "small": MODELS["small"]}
    budgets = {"smollm2": "900M", "demo": "200M", "small": "200M"}
    file = tmp_path / "models.toml"
    file.write_text(toml({name: {**it, "memory": budgets[name]} for name, it in models.items()}, "1100M"))
    with spawned("-m", "paceline", "serve", "--models", str(file), "--port", "0", "--max-requests", "4") as (url, _):
        storm(url, alone(models), 60)
