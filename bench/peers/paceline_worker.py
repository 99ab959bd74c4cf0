"""Paceline at its defaults, in the peers' protocol. The prefix cache is off, as in every tool here: the same prompts
come again in every round. `own` of the request are further options of `LLM`."""

from typing import Any

from protocol import Generate, Ids, serve

from paceline import LLM, SamplingParams, __version__
from paceline.engine.options import Options

DRAFTER = {"plain": "none", "draft": "model", "lookup": "ngram", "both": "suffix+topk", "auto": "auto"}
ADAPTER = "lora"
"""Name of the adapter that `own` gives."""
QUANTIZE = {"bf16": "none", "8-bit": "int8", "4-bit": "int4"}


def load(spec: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    own = str(spec["model"]).endswith(".gguf")  # a file of narrow weights is served in its own bits
    settings = {
        "drafter": DRAFTER[spec["mode"]],
        "nodes": spec["k"],
        "quantize": None if own else QUANTIZE[spec["weights"]],
        "threads": spec["threads"],
        "max_requests": max(Options().max_requests, spec["batch"]),
        "prefix_cache": False,
        **spec.get("own", {}),
    }
    adapter = ADAPTER if "lora" in settings else ""
    if adapter:
        settings["lora"] = {adapter: settings["lora"]}
    llm = LLM(spec["model"], spec["draft"], **settings)

    calls = 0

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        nonlocal calls
        if calls == 1:
            llm.engine.drafters.drafters.clear()  # the warm-up had the first prompts: nothing of them may be remembered
        calls += 1
        params = SamplingParams(temperature=0, repetition_penalty=1.0, max_tokens=max_tokens, adapter=adapter)
        return [output.token_ids for output in llm.generate(prompts, params, progress=False)]

    return generate, {"paceline": __version__}


if __name__ == "__main__":
    serve(load)
