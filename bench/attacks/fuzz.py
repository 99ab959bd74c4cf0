"""Mutated bodies for every door of a server: `python -m bench.attacks.fuzz [--count 5000] [--seed 0]`.

Doors and their models are found by reflection, so a new field or a new end point is fuzzed without a word here. Each
body begins as a valid one and gets one to four mutations: of types, sizes, nesting, characters, numbers, keys given
twice. It prints the statuses and how much memory the server grew by, in all and over the second half; the exit code
is 1 for a 500 or a death. What a server keeps within bounds (K/V, stored answers, compiled grammars) is kept small, so
that it is full when the second half begins: then growth is a leak.
"""

import argparse
import http.client
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from bench.attacks.process import started
from paceline.serve import app

TIMEOUT_S = 900.0
"""Patience with one answer: a machine that is shared may stand still for minutes."""
PART = 5000
"""Bodies between two words of how far it has come."""
Door = tuple[str, type[BaseModel]]
USER = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
RANK: list[dict[str, Any]] = [{"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": False}]
SCORE: list[dict[str, Any]] = [
    {"text_1": "a", "text_2": ["b", "c"]},
    {"queries": ["a", "b"], "documents": ["c", "d"], "pooling": "last"},
]
BASES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "One", "max_tokens": 2, "stop": ["x"], "logit_bias": {"5": 1.0}, "logprobs": 1, "n": 2},
        {"prompt": [[1, 2], [3]], "max_tokens": 1, "grammar": {"kind": "regex", "text": "[a-z]+"}},
        {"prompt": ["a", "b"], "max_tokens": 2, "speculation": {"drafter": "ngram", "max_nodes": 4}, "cache_salt": "s"},
    ],
    "/v1/chat/completions": [
        {"messages": USER, "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "chat_template_kwargs": {"a": 1}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2, "stream": True,
         "stream_options": {"include_usage": True}},
        {"messages": USER, "max_tokens": 2, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"messages": USER, "max_tokens": 2, "tools": [TOOL], "tool_choice": "required"},
    ],
    "/v1/responses": [
        {"input": "Hi", "max_output_tokens": 2, "metadata": {"a": "b"}, "include": ["message.output_text.logprobs"]},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}],
         "max_output_tokens": 2, "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ],
    "/v1/conversations": [
        {"items": [{"type": "message", "role": "user", "content": "x"}], "metadata": {"a": "b"}},
    ],
    "/v1/messages": [
        {"messages": USER, "max_tokens": 2, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2, "stream": True,
         "thinking": {"type": "disabled"}},
    ],
    "/v1/messages/count_tokens": [{"messages": USER}],
    "/v1/embeddings": [{"input": ["a", "b"], "pooling": "mean"}, {"input": [1, 2], "encoding_format": "base64"}],
    "/v1/rerank": RANK, "/v2/rerank": RANK, "/rerank": RANK, "/v1/score": SCORE, "/score": SCORE,
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 2,
                 "input_extra": [{"filename": "f", "text": "t"}]}],
    "/tokenize": [{"prompt": "a"}, {"messages": USER}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/api/chat": [
        {"model": "demo", "messages": USER, "options": {"num_predict": 2, "stop": ["x"], "seed": 1}},
        {"model": "demo", "messages": USER, "options": {"num_predict": 2}, "stream": False, "format": SCHEMA},
        {"model": "demo:latest", "messages": USER, "options": {"num_predict": 2}, "tools": [TOOL], "think": False},
    ],
    "/api/generate": [
        {"model": "demo", "prompt": "One", "options": {"num_predict": 2, "top_k": 3}, "raw": True},
        {"model": "demo", "prompt": "One", "options": {"num_predict": 2}, "format": "json", "system": "s"},
    ],
    "/api/embed": [{"model": "demo", "input": ["a", "b"]}],
    "/api/embeddings": [{"model": "demo", "prompt": "a"}],
    "/api/show": [{"model": "demo"}],
    "/v1/load_lora_adapter": [{"lora_name": "a", "lora_path": "b", "load_inplace": False}],
    "/v1/unload_lora_adapter": [{"lora_name": "a"}],
    "/slots/0": [{"filename": "a", "model": "demo"}],
}  # fmt: skip
"""Valid bodies of each door; one that is not here begins empty."""


def doors() -> list[Door]:
    """Every end point that takes a body, with its model."""
    routers = (module.router for module in vars(app).values() if isinstance(getattr(module, "router", None), APIRouter))
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return [
        (r.path.replace("{number}", "0"), r.body_field.field_info.annotation)
        for r in routes
        if r.body_field is not None
    ]  # type: ignore[misc]


def deep(value: Any, levels: int, kind: int) -> Any:
    for _ in range(levels):
        value = [value] if kind else {"a": value}
    return value


def junk(draw: random.Random) -> Any:
    """Any JSON value, most of them at some edge."""
    size = draw.choice((1, 3, 50, 3000))
    kinds = (
        lambda: draw.choice((None, True, False, 0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**64), 10**40)),
        lambda: draw.choice((0.0, -0.0, 0.5, 1.0, 1.5, -3.5, 1e-320, 1e308, float("nan"), float("inf"))),
        lambda: draw.choice(("", "a", "auto", "none", "text", "user", "json_schema", "\0", "\ud800", "é", "{}")),
        lambda: draw.choice(("a", "😀", "\u202e", " ", "\n", "<|im_end|>", "%s", "{{", "../", "ﷺ")) * size,
        lambda: [junk(draw) for _ in range(draw.randrange(4))],
        lambda: [draw.choice((1, "a", None, {}, [], 0.5))] * size,
        lambda: {draw.choice(("type", "text", "name", "a", "", "$ref", "self")): junk(draw) for _ in range(3)},
        lambda: {str(i): draw.choice((1, "a", 0.5)) for i in range(size)},
        lambda: deep(1, draw.choice((2, 99, 101, 300)), draw.randrange(2)),
    )
    return draw.choice(kinds)()


def like(value: Any, draw: random.Random) -> Any:
    """Another value of the same kind, most of which a server takes."""
    match value:
        case bool():
            return not value
        case int():
            return draw.choice((0, 1, 2, 3, 7, 64, value + 1, -value))
        case float():
            return draw.choice((0.0, 0.3, 1.0, value / 2))
        case str():
            return draw.choice(("", "a", "Hi there", value * 2, "\U0001f600", "\n\n", "[a-c]{1,3}"))
    return junk(draw)


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of everything within a value."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(list(value.items()))
    elif isinstance(value, list):
        items = iter(list(enumerate(value)))
    for key, inner in items:
        found.append((value, key))
        places(inner, found)
    return found


def mutated(model: type[BaseModel], base: dict[str, Any], draw: random.Random) -> bytes:
    body = json.loads(json.dumps(base))
    names = [field.alias or name for name, field in model.model_fields.items()]
    twice = ""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        spots = places(body, [])
        match draw.randrange(9):
            case 0:
                body[draw.choice(names)] = junk(draw)
            case 1 | 2 if spots:
                container, key = draw.choice(spots)
                container[key] = junk(draw)
            case 5 | 6 | 7 if spots:
                container, key = draw.choice(spots)
                container[key] = like(container[key], draw)
            case 3 if spots:
                container, key = draw.choice(spots)
                if isinstance(container, dict):
                    container.pop(key, None)
                else:
                    container += container[:3]
            case 4:
                body[draw.choice(("unknown", "model", "user", "__proto__", "n", "best_of", "logit_bias"))] = junk(draw)
            case _:
                name = draw.choice(names)
                twice = f"{json.dumps(name)}: {json.dumps(junk(draw))}, "
    text = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"{" + twice.encode("utf-8", "surrogatepass") + text[1:] if twice and len(text) > 2 else text


def bodies(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """(path, body), the same for the same seed."""
    draw, known = random.Random(seed), doors()
    for _ in range(count):
        path, model = draw.choice(known)
        yield path, mutated(model, draw.choice(BASES.get(path, [{}])), draw)


def send(url: str, part: list[tuple[str, bytes]], key: str = "") -> tuple[Counter[int], list[tuple[str, bytes]]]:
    """Statuses, and those that were answered with 500 or not at all. One connection, as long as it lasts."""
    parts = urlsplit(url)
    statuses, bad = Counter[int](), list[tuple[str, bytes]]()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    for path, body in part:
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            status = 500 if b'"server_error"' in data[-400:] and answer.status == 200 else answer.status
        except (OSError, http.client.HTTPException):
            connection.close()
            status = 0
        statuses[status] += 1
        if status in (0, 500):
            bad.append((path, body))
    connection.close()
    return statuses, bad


def fuzzed(url: str, count: int, seed: int, at_once: int = 4) -> tuple[Counter[int], list[tuple[str, bytes]]]:
    """Send so many bodies over some connections."""
    made = list(bodies(count, seed))
    total, bad = Counter[int](), list[tuple[str, bytes]]()
    with ThreadPoolExecutor(at_once) as pool:
        for statuses, wrong in pool.map(lambda k: send(url, made[k::at_once]), range(at_once)):
            total += statuses
            bad += wrong
    return total, bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.attacks.fuzz")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    serve = ("serve", "--port", "0", "--memory", "1G", "--max-output-tokens", "8", "--max-choices", "16",
             "--blocks", "600", "--response-store-bytes", "1000000")  # fmt: skip
    with started(serve) as (server,):
        fuzzed(server.url, 300, given.seed + 1)
        before, began = server.resident_mb, time.monotonic()
        statuses, bad, middle = Counter[int](), list[tuple[str, bytes]](), before
        for done in range(0, given.count, PART):
            seen, wrong = fuzzed(server.url, min(PART, given.count - done), given.seed + done)
            statuses, bad = statuses + seen, bad + wrong
            if done < given.count // 2:
                middle = server.resident_mb
            if given.count > PART:
                so_far = f"{sum(statuses.values())} bodies, {len(bad)} bad, {server.resident_mb - before:+.0f} MB"
                print(so_far, flush=True)
        seconds = time.monotonic() - began
        time.sleep(5)
        told = " ".join(f"{count}x{status}" for status, count in sorted(statuses.items()))
        print(f"{given.count} bodies over {len(doors())} doors in {seconds:.0f} s: {told}")
        late = server.resident_mb - middle
        print(f"grew {server.resident_mb - before:+.0f} MB from {before:.0f}, {late:+.0f} of them in the second half")
        print("alive" if server.alive else "DEAD")
        for path, body in bad[:5]:
            print(path, body[:300])
        return 0 if server.alive and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
