"""Random requests, good and bad: never 500, and the text of a seed is the same with any drafter. PACELINE_FUZZ sets how
many (5,000 in the full run)."""

import os
import random
from typing import Any

import httpx2
import pytest

from tests.serve.http import post

COUNT = int(os.environ.get("PACELINE_FUZZ", "5000"))
DRAFTERS = ("none", "ngram", "model", "suffix", "lookahead", "auto", "ngram+topk", "sequoia", "ngram|model")
TEXTS = ("Tom has 3 apples.", "", " ", "\n\n", "a" * 300, "naïve 東京 🙂", "<|user|>", "\x00\x1b[2J", "def f(x):\n")
NUMBERS: tuple[Any, ...] = (0, 1, 2, 0.5, -1, 1e-300, 1e308, -0.0, 2**53 + 1, 2**63, 10**30, "1", True, [], {})
SCHEMAS: tuple[Any, ...] = (
    {"type": "integer"},
    {"enum": ["a", 1]},
    {"type": "object"},
    {},
    {"pattern": "("},
    {"type": 3},
)


def sampling(rng: random.Random) -> dict[str, Any]:
    """Parameters, most of them in order."""
    choices: dict[str, Any] = {
        "temperature": (0, 0.3, 1, 2), "top_p": (1, 0.9, 0.01), "top_k": (0, 1, 20, -1),
        "min_p": (0, 0.1),
        "repetition_penalty": (1, 1.3), "presence_penalty": (0, 2), "frequency_penalty": (-2, 0.5), "n": (1, 2, 3),
        "logit_bias": ({}, {"5": 3, "9": -100}), "bad_words": ([], ["he", "\n"], [[5, 6]]),
        "stop": ([], ".", ["a", "bb"]),
        "min_tokens": (0, 3), "ignore_eos": (True, False), "skip_special_tokens": (True, False), "user": ("x",),
        "include_stop": (True, False), "stop_token_ids": ([], [5]), "allowed_tokens": ([5, 6, 7],), "seed": (1, 2**63),
    }  # fmt: skip
    made = {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.2}
    if rng.random() < 0.2:
        made[rng.choice([*choices, "max_tokens", "priority", "deadline_ms", "speculation", "grammar"])] = rng.choice(
            NUMBERS
        )
    if rng.random() < 0.1:
        kind = rng.choice(("regex", "lark", "json_schema", "json_object", "xml"))
        made["grammar"] = {"kind": kind, "text": rng.choice(("a+b", "", "(", 'start: "a"', '{"type": "integer"}'))}
    return made


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    body = {"max_tokens": rng.choice((1, 8, 24)), "seed": rng.randrange(99), **sampling(rng)}
    if rng.random() < 0.6:
        prompt = rng.choice((*TEXTS, list(TEXTS), [5, 6, 7], [[5], [6, 7]], [], [10**9], [1, "x"], None, {}))
        more = {"echo": rng.random() < 0.2, "logprobs": rng.choice((None, None, 0, 5, 21))}
        return "/v1/completions", {"prompt": prompt, **body, **more}
    messages: list[Any] = [{"role": rng.choice(("user", "user", "system", "robot")), "content": rng.choice(TEXTS)}]
    messages += [{"role": "assistant", "content": rng.choice((None, "x"))}] if rng.random() < 0.2 else []
    if rng.random() < 0.2:
        schema = rng.choice(SCHEMAS)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return "/v1/chat/completions", {"messages": messages, **body}


def same(one: Any, two: Any) -> bool:
    """Compare two answers: texts, finish reasons and seeds."""
    parts = [
        [(c.get("text"), c.get("message"), c["finish_reason"]) for c in answer["choices"]] for answer in (one, two)
    ]
    return bool(parts[0] == parts[1])


def run(url: str, count: int, seed: int) -> dict[int, int]:
    rng, seen = random.Random(seed), dict[int, int]()
    for _ in range(count):
        path, body = request(rng)
        plain = body if "speculation" in body else {**body, "speculation": {"drafter": "none"}}
        status, answer = post(url + path, plain)
        seen[status] = seen.get(status, 0) + 1
        assert status in (200, 400), (path, body, answer)
        if status == 200 and "speculation" not in body:
            drafter = rng.choice(DRAFTERS)
            drafted, other = post(url + path, {**body, "speculation": {"drafter": drafter}})
            assert drafted == 200 and same(answer, other), (drafter, path, body, answer, other)
    assert httpx2.get(f"{url}/health").status_code == 200
    return seen


def test_some_random_requests(url: str) -> None:
    seen = run(url, 40, 7)
    assert seen.keys() == {200, 400}


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_random_requests(url: str) -> None:
    print(run(url, COUNT, 1))
