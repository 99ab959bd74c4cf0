"""What one client with a key of its own does to a server. Each attack ends by itself within some seconds."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from bench.attacks import raw
from bench.attacks.wire import opened, post

Attack = Callable[[str, str], str]
"""From a server's address and the attacker's key to what was answered, in short."""
LARGE_BYTES = 4_000_000


def told(answers: Sequence[tuple[int, bytes]]) -> str:
    counts: dict[int, int] = {}
    for status, _ in answers:
        counts[status] = counts.get(status, 0) + 1
    return " ".join(f"{count}x{status}" for status, count in sorted(counts.items()))


def many(url: str, key: str, path: str, bodies: Sequence[Any], at_once: int = 4) -> str:
    with ThreadPoolExecutor(at_once) as pool:
        return told(list(pool.map(lambda body: post(url, path, body, key), bodies)))


def chain(n: int) -> str:
    return "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(n)) + f'a{n}: "x"\n'


def defs(n: int, part: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    made = {f"a{i}": part(f"#/$defs/a{i + 1}") for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**made, f"a{n}": {"type": "string"}}}


def grammars(url: str, key: str) -> str:
    """E1: references in chains, nesting, repetition, in every form that a grammar is given in."""
    nested: Any = {"type": "string"}
    for _ in range(90):
        nested = {"type": "object", "properties": {"x": nested}}
    schemas = [
        defs(2000, lambda ref: {"type": "object", "properties": {"x": {"$ref": ref}}}),
        defs(2000, lambda ref: {"$ref": ref}),
        defs(400, lambda ref: {"anyOf": [{"$ref": ref}, {"$ref": ref}]}),
        defs(40, lambda ref: {"allOf": [{"$ref": ref}, {"$ref": ref}]}),
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 10**9},
        {"type": "string", "pattern": "(" * 200 + "a" + ")*" * 200},
        nested,
    ]
    texts = [
        ("lark", chain(3000)),
        ("lark", "start: " + "(" * 5000 + '"x"' + ")" * 5000),
        ("lark", 'start: a{1,100000}\na: b{1,100000}\nb: "x"'),
        ("lark", "start: " + " | ".join(f'"{"a" * i}b"' for i in range(480))),
        ("lark", 'start: start "x" | start start | ""'),
        ("regex", "(" * 10000 + "x" + ")" * 10000),
        ("regex", "((a{1,100}){1,100}b){1,100}"),
        ("regex", "|".join("a" * i + "b" for i in range(500))),
        ("regex", r"(.*a.{30}|.*b.{30})*"),
    ]
    bodies = [{"prompt": "x", "max_tokens": 4, "grammar": {"kind": kind, "text": text}} for kind, text in texts]
    chats = [{"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in schemas]
    talk = [
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "response_format": each} for each in chats
    ]
    tool = {"name": "f", "parameters": schemas[0]}
    talk.append({"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "tool_choice": "required",
                 "tools": [{"type": "function", "function": tool}]})  # fmt: skip
    return many(url, key, "/v1/completions", bodies, 1) + " / " + many(url, key, "/v1/chat/completions", talk, 1)


def validation(url: str, key: str) -> str:
    """E2: large lists and objects of wrong values, through every door."""
    n = LARGE_BYTES // 3
    ones, names = [1] * n, {str(i): [] for i in range(LARGE_BYTES // 14)}
    user = [{"role": "user", "content": "x"}]
    bodies: list[tuple[str, Any]] = [
        ("/v1/responses", {"input": "x", "include": ones}),
        ("/v1/responses", {"input": "x", "metadata": names}),
        ("/v1/responses", {"input": ones}),
        ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": ones}]}),
        ("/v1/messages", {"messages": user, "max_tokens": 1, "stop_sequences": ones}),
        ("/v1/messages", {"messages": user, "max_tokens": 1, "system": ones}),
        ("/v1/messages", {"messages": user, "max_tokens": 1, "metadata": names}),
        ("/v1/chat/completions", {"messages": ones}),
        ("/v1/chat/completions", {"messages": user, "logit_bias": names}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}] * (n // 8)}]}),
        ("/v1/completions", {"prompt": [["a"], *[[1]] * (n // 2)]}),
        ("/v1/completions", {"prompt": "x", "bad_words": [[None]] * (n // 3)}),
        ("/v1/embeddings", {"input": ["a", *ones], "pooling": "mean"}),
        ("/tokenize", {"messages": ones}),
        ("/detokenize", {"tokens": ["a"] * (n // 2)}),
    ]
    return told([post(url, path, body, key) for path, body in bodies])


def garbage(url: str, key: str) -> str:
    """E3: forty bodies of 270 KB."""
    return many(url, key, "/v1/completions", [{"prompt": "word " * 54_000, "max_tokens": 1}] * 40)


def endless(url: str, key: str) -> str:
    """E4: 65 bodies that never end; those that trickle beside."""
    held = []
    for _ in range(65):
        with suppress(OSError):
            held.append(opened(url, "/v1/completions", key, LARGE_BYTES, b'{"prompt": "' + b"x" * (LARGE_BYTES - 99)))
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for each in held:
            with suppress(OSError):
                each.send(b"x")
        time.sleep(0.5)
    for each in held:
        each.close()
    return f"{len(held)} connections"


def unread(url: str, key: str) -> str:
    """E6: stored answers with junk, gone on with fifteen times, and read again."""
    item = {"role": "user", "content": "Hi", "junk": "x" * 3_900_000}
    id, answers = None, []
    for _ in range(15):
        body: dict[str, Any] = {"input": [item], "max_output_tokens": 1}
        answer = post(url, "/v1/responses", body | ({"previous_response_id": id} if id else {}), key)
        answers.append(answer)
        with suppress(ValueError, KeyError):
            id = json.loads(answer[1])["id"]
    small = {"input": "x", "previous_response_id": id, "max_output_tokens": 1}
    return told(answers) + " then " + many(url, key, "/v1/responses", [small] * 20)


def embedding(url: str, key: str) -> str:
    """E7: three requests of twelve texts of 400 tokens."""
    body = {"input": ["one two three four " * 100] * 12, "pooling": "mean"}
    return many(url, key, "/v1/embeddings", [body] * 3, 3)


def nodes(url: str, key: str) -> str:
    """E10: drafts as large as they may be asked for, and larger."""
    wish = {"prompt": "One two one two one two", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    made = [
        {**wish, "speculation": {"drafter": "ngram", "max_nodes": most}} for most in (64, 64, 64, 64, 32, 32, 32, 32)
    ]
    return many(url, key, "/v1/completions", made, 8)


def names(url: str, key: str) -> str:
    """E12: names that collide with the server's own."""
    talk = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    taken = (
        "self",
        "messages",
        "conversation",
        "kwargs",
        "template_args",
        "chat_template",
        "tokenize",
        "loop",
        "__class__",
    )
    return many(url, key, "/v1/chat/completions", [{**talk, "chat_template_kwargs": {name: 1}} for name in taken])


def prompts(url: str, key: str) -> str:
    """E14: long prompts."""
    return many(url, key, "/v1/completions", [{"prompt": "word " * 1100, "max_tokens": 1}] * 6, 3)


def deep(url: str, key: str) -> str:
    """Bodies that are deep, doubled or no JSON."""
    raw = [
        b'{"prompt": ' + b"[" * 200_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"[" * LARGE_BYTES,
        b"\xff" * LARGE_BYTES,
    ]
    wide = json.dumps({"messages": [{"role": "user", "content": "x"}], "tools": [{"x": [[]] * 500_000}]}).encode()
    return many(url, key, "/v1/chat/completions", [*raw, wide])


def crowd(url: str, key: str) -> str:
    """Two hundred requests at once."""
    body = {"prompt": "One", "max_tokens": 16, "ignore_eos": True}
    return many(url, key, "/v1/completions", [body] * 200, 200)


def gone(url: str, key: str) -> str:
    """Clients that send long requests and leave."""
    body = json.dumps({"prompt": "One", "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
    for _ in range(100):
        with suppress(OSError):
            opened(url, "/v1/completions", key, len(body), body).close()
    return "100 left"


def heads(url: str, key: str) -> str:
    """Connections that bring half a head, and clients that read nothing of their stream."""
    body = json.dumps({"prompt": "One", "max_tokens": 500, "stream": True, "ignore_eos": True}).encode()
    held = []
    for _ in range(300):
        with suppress(OSError):
            held.append(opened(url, "/v1/completions\r\n"[:5], key, 10))
    for _ in range(8):
        with suppress(OSError):
            held.append(opened(url, "/v1/completions", key, len(body), body))
    time.sleep(3)
    for each in held:
        each.close()
    return f"{len(held)} connections"


def flood(url: str, key: str) -> str:
    """Two hundred grammars that are all new, most of them slow, thirty-two at once; half of the clients leave."""
    slow = [f"(.*a.{{{20 + i}}}|.*b.{{30}})*" for i in range(60)] + [f"(a{{1,{40 + i}}}){{1,99}}b" for i in range(60)]
    quick = [f"x{{{i}}}[a-z]+" for i in range(1, 81)]
    bodies = [{"prompt": "x", "max_tokens": 2, "grammar": {"kind": "regex", "text": text}} for text in slow + quick]
    left = 0
    for body in bodies[::2]:
        raw = json.dumps(body).encode()
        with suppress(OSError):
            opened(url, "/v1/completions", key, len(raw), raw).close()
            left += 1
    return f"{left} left / " + many(url, key, "/v1/completions", bodies[1::2], 32)


def streams(url: str, key: str) -> str:
    """Streams with log-probabilities that nobody reads."""
    wish = {"prompt": "One", "max_tokens": 900, "stream": True, "ignore_eos": True, "logprobs": 5}
    body, held = json.dumps(wish).encode(), []
    for _ in range(64):
        with suppress(OSError):
            held.append(opened(url, "/v1/completions", key, len(body), body))
    time.sleep(6)
    for each in held:
        each.close()
    return f"{len(held)} streams"


def layout(url: str, key: str) -> str:
    """Answers of nothing but white space, which may be layout before a call, and of bytes that are no character: what a
    reader of answers holds back. More with a model that has tokens of many spaces and a long context (`--model`)."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    wish = {"max_tokens": 900, "ignore_eos": True, "temperature": 0, "seed": 1}
    talk = {**wish, "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    spaces, partial = (
        json.loads(post(url, "/tokenize", {"prompt": text, "add_special_tokens": False}, key)[1])["tokens"][:1]
        for text in (" " * 128, "\U0001f9ff")
    )
    return (
        many(
            url, key, "/v1/chat/completions", [{**talk, "allowed_tokens": spaces, "stream": on} for on in (True, False)]
        )
        + " / "
        + many(url, key, "/v1/completions", [{**wish, "prompt": "x", "n": 8, "allowed_tokens": partial}])
    )


def parts(url: str, key: str) -> str:
    """E2: many small parts within one message, through every door that has such, and templates' variables."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [[[1]]]}'}}
    user = {"role": "user", "content": "x"}
    wide = {"type": "object", "properties": {"a": {"enum": [[]] * 15_000}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": wide}} for i in range(20)]
    results = [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}] * 9000}] * 8
    bodies: list[tuple[str, Any]] = [
        ("/v1/chat/completions", {"messages": [user, {"role": "assistant", "tool_calls": [call] * 20_000}, user]}),
        ("/v1/chat/completions", {"messages": [user], "tools": tools}),
        ("/v1/chat/completions", {"messages": [user], "chat_template_kwargs": {"a": [[]] * 19_000}, "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": results}], "max_tokens": 1}),
        ("/v1/responses", {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": ""}] * 9000}]}),
    ]
    with ThreadPoolExecutor(6) as pool:
        return told(list(pool.map(lambda each: post(url, each[0], each[1], key), bodies * 3)))


def huge(url: str, key: str) -> str:
    """Bodies of 9 MB: each is told 413, though it sends all before it reads."""
    return told([post(url, "/v1/completions", b"x" * 9_000_000, key) for _ in range(8)])


RAW: tuple[Attack, ...] = (
    raw.pipelined, raw.behind, raw.trailers, raw.crumbs, raw.odd, raw.reads, raw.idle, raw.neighbours, raw.slow,
)  # fmt: skip
SERVED: tuple[Attack, ...] = (
    grammars, validation, garbage, endless, unread, embedding, nodes, names, prompts, deep, crowd, gone, heads, flood,
    streams, layout, parts, huge, *RAW,
)  # fmt: skip
ROUTED: tuple[Attack, ...] = (
    grammars, validation, garbage, endless, nodes, names, prompts, deep, crowd, gone, heads, flood, streams, parts,
    huge, *RAW,
)  # fmt: skip
NAMED: tuple[Attack, ...] = (raw.brief,)
"""Run where they are named alone: no server bounds them, but the system and what stands before it."""
