"""One tool in one process: a request per line of standard input, an answer per line of standard output, in JSON.

    {"load": SPEC}                                                -> {"ready": {"package": "version", ...}}
    {"generate": {"prompts": [[id, ...], ...], "max_tokens": N}}  -> {"ids": [[id, ...], ...], "seconds": s}
    anything that fails                                           -> {"error": "a sentence"}

SPEC: peer (the tool's name), model, draft (path or null), mode (plain, draft, lookup), k (drafted tokens a step; null:
the tool's own number), weights (bf16, 8-bit), threads, batch (most prompts of one generate), max_len (longest prompt
plus output), eos (ids), and the tool's own `options` of peers.json. Decoding is greedy, without the penalties that a
checkpoint's generation_config.json may ask for; `ids` are what the tool generated, up to and with its end-of-sequence
token. `seconds` is the wall time of one generate call alone.

This file and the workers need nothing of Paceline's, so that they run in the tool's environment.
"""

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

Ids = list[list[int]]
Generate = Callable[[Ids, int], Ids]
"""(prompts, max_tokens) -> what was generated for each"""
Load = Callable[[dict[str, Any]], tuple[Generate, dict[str, str]]]
"""A SPEC -> how to generate, and versions"""


def serve(load: Load) -> None:
    """Answer until standard input ends. Whatever a library prints goes to stderr, not between the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    generate: Generate | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if "load" in request:
                generate, versions = load(request["load"])
                answer: dict[str, Any] = {"ready": versions}
            elif generate is None:
                answer = {"error": "Nothing is loaded; send load first."}
            else:
                wish = request["generate"]
                started = perf_counter()
                ids = generate(wish["prompts"], wish["max_tokens"])
                answer = {"ids": ids, "seconds": perf_counter() - started}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
