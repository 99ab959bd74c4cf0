"""Several models in one process: each answer is that of its model alone, whatever was loaded and unloaded meanwhile."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import LLM, SamplingParams
from paceline.cli.serve import ServingArgs, fleet_of
from paceline.core.errors import InputError
from paceline.engine.pair import DEMO
from paceline.serve.fleet import Fleet
from paceline.serve.settings import Settings, read_toml
from tests.serve.conftest import running
from tests.serve.http import events, post, send

EACH = 150_000_000
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"model": DEMO / "target", "dtype": "float32", "max_requests": 4, "memory": EACH},
    "rounded": {"model": DEMO / "target", "draft": DEMO / "draft", "max_requests": 4, "memory": EACH},
    "small": {"model": DEMO / "draft", "dtype": "float32", "max_requests": 4, "memory": EACH},
}
PROMPTS = ["Tom has 3 apples", "def add(a, b):", "A baker packs 6 rolls", "Once upon a time"]


@contextmanager
def served(**more: Any) -> Iterator[tuple[str, Fleet]]:
    settings = Settings()
    fleet = Fleet(MODELS, settings, **more)
    try:
        with running(fleet, settings) as url:
            yield url, fleet
    finally:
        fleet.close()


def wish(name: str, prompt: str) -> dict[str, Any]:
    return {"model": name, "prompt": prompt, "max_tokens": 12, "temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], str]:
    """The answers of each model in an engine of its own."""
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=5)
    found = {}
    for name, options in MODELS.items():
        llm = LLM(**options)
        for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, params, progress=False)):
            found[name, prompt] = answer.text
    return found


def storm(url: str, alone: dict[tuple[str, str], str], count: int, clients: int) -> None:
    """Requests in random order, several at a time; each answer is checked."""
    order = random.Random(1)
    wishes = [(order.choice([*MODELS]), order.choice(PROMPTS)) for _ in range(count)]

    def one(pair: tuple[str, str]) -> tuple[int, str]:
        status, answer = post(url + "/v1/completions", wish(*pair))
        return status, answer["choices"][0]["text"] if status == 200 else str(answer)

    with ThreadPoolExecutor(clients) as pool:
        for pair, answer in zip(wishes, pool.map(one, wishes)):
            assert answer == (200, alone[pair])


def test_two_fit_and_the_third_takes_turns(alone: dict[tuple[str, str], str]) -> None:
    with served(memory=2 * EACH) as (url, fleet):
        assert [card["loaded"] for card in send(url + "/v1/models")[1]["data"]] == [False] * 3
        storm(url, alone, 12, clients=3)
        cards = send(url + "/v1/models")[1]["data"]
        assert sum(card["loaded"] for card in cards) == 2
        assert sum(card["unloads"] for card in cards) >= 1
        assert send(url + "/stats")[1]["tokens"]["generated"] == fleet.snapshot.speculation.generated > 0
        counted = fleet.snapshot.speculation.generated
        assert counted >= 12, "what unloaded engines made still counts"
        gone = [it.retired for it in fleet.members.values() if it.unloads]
        assert all(it.busy_s > 0.0 and it.saved_s and not it.why for it in gone), "their account, too, but no reasons"
        assert send(url + "/stats")[1]["busy_s"] > sum(it.busy_s for it in gone)
        assert post(url + "/v1/completions", wish("another", "a"))[0] == 404


@pytest.mark.full
def test_two_hundred_requests(alone: dict[tuple[str, str], str]) -> None:
    process, peak, ended = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss - before)

    thread = threading.Thread(target=watch)
    thread.start()
    with served(memory=2 * EACH) as (url, fleet):
        storm(url, alone, 200, clients=4)
        loads, unloads = ([getattr(m, name) for m in fleet.members.values()] for name in ("loads", "unloads"))
    ended.set()
    thread.join()
    print(
        f"\nloads {loads}, unloads {unloads}, peak {peak[0] / 1e6:.0f} MB above the start, "
        f"budget {2 * EACH / 1e6:.0f} MB"
    )
    assert sum(loads) >= 3 and sum(loads) - sum(unloads) <= 2
    assert peak[0] < 2 * EACH + 100e6


def test_nobody_is_unloaded_in_mid_answer(alone: dict[tuple[str, str], str]) -> None:
    """Room for one: a long answer is complete though another model is asked for meanwhile."""
    with served(memory=EACH) as (url, fleet):
        long = {**wish("plain", PROMPTS[0]), "max_tokens": 300, "ignore_eos": True}
        with ThreadPoolExecutor(2) as pool:
            streamed = pool.submit(events, url + "/v1/completions", long)
            while not fleet.members["plain"].users:
                pass
            other = pool.submit(post, url + "/v1/completions", wish("small", PROMPTS[1]))
            made = streamed.result()
            assert other.result()[1]["choices"][0]["text"] == alone["small", PROMPTS[1]]
        whole = LLM(**MODELS["plain"]).generate(
            PROMPTS[0], SamplingParams(max_tokens=300, ignore_eos=True, temperature=0.8, seed=5), progress=False
        )[0]
        assert "".join(event["choices"][0]["text"] for event in made) == whole.text
        assert fleet.members["plain"].unloads == 1


def test_who_is_idle_goes(alone: dict[tuple[str, str], str]) -> None:
    with served(idle_s=0.3) as (url, fleet):
        assert post(url + "/v1/completions", wish("small", PROMPTS[0]))[0] == 200
        member, waited = fleet.members["small"], threading.Event()
        while not member.unloads:
            assert not waited.wait(0.05)
        assert (
            post(url + "/v1/completions", wish("small", PROMPTS[0]))[1]["choices"][0]["text"]
            == alone["small", PROMPTS[0]]
        )
        assert member.loads == 2


def test_a_model_that_cannot_be_loaded_hurts_nobody_else(tmp_path: Path) -> None:
    models = {"small": MODELS["small"], "broken": {"model": tmp_path}}
    settings = Settings()
    fleet = Fleet(models, settings)
    try:
        with running(fleet, settings) as url:
            status, answer = post(url + "/v1/completions", wish("broken", "a"))
            assert status == 503 and answer["error"]["code"] == "model_not_loaded"
            assert post(url + "/v1/completions", wish("small", "a"))[0] == 200
            assert send(url + "/health")[0] == 200
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no tables"),
        ("colour = 1", "Unknown setting 'colour'"),
        ("[models.a]\ncolour = 1", "Unknown option 'colour' of model 'a'"),
        ("[models.a]\nthreads = 'x'", "threads"),
        ("memory = [1]\n[models.a]", "memory must be bytes"),
        ("idle_s = -1\n[models.a]", "idle_s"),
    ],
)
def test_the_file_is_checked(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        fleet_of(read_toml(file), ServingArgs(), file)


def test_shares_and_own_budgets(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        'memory = "3G"\nidle_s = 60\n[models.a]\nmodel = "x"\n[models.b]\nmemory = "2G"\ndtype = "float32"\n'
    )
    made = fleet_of(read_toml(file), ServingArgs(threads=1), file)
    fleet = Fleet(**made, settings=Settings())
    assert [member.bytes for member in fleet.members.values()] == [3 * 2**29, 2 * 2**30] and fleet.idle_s == 60
    assert fleet.members["b"].options["dtype"] == "float32" and fleet.members["a"].options["threads"] == 1
    with pytest.raises(InputError, match="more than the"):
        Fleet({"a": {"memory": "4G"}}, Settings(), memory="3G")
