"""ik_llama.cpp: the llama-server that you built of it, with weights repacked as it loads (-rtr)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llamacpp_worker import NGRAM, post, start, version
from protocol import Generate, Ids, serve


def load(spec: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    port = start(spec, ["-rtr", *speculation(spec)])
    pool = ThreadPoolExecutor(spec["batch"])

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        return list(pool.map(lambda ids: complete(port, ids, max_tokens), prompts))

    return generate, {"ik_llama.cpp": version(spec["options"]["server"])}


def speculation(spec: dict[str, Any]) -> list[str]:
    k = spec["k"]
    return {
        "plain": [],
        "draft": ["-md", str(spec["draft"]), "--spec-type", f"draft:n_max={k}"],
        "lookup": ["--spec-type", f"ngram-map-k:n_max={k},ngram_size_n={NGRAM},ngram_size_m={k}"],
    }[spec["mode"]]


def complete(port: int, prompt: list[int], max_tokens: int) -> list[int]:
    """Ids of one answer. The server gives its text alone: they are those of the text, cut or filled up with -1 to the
    number that it counts."""
    answer = post(
        port, "completion", {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False}
    )
    count: int = answer["tokens_predicted"]
    ids: list[int] = post(port, "tokenize", {"content": answer["content"]})["tokens"]
    return (ids + [-1] * count)[:count]


if __name__ == "__main__":
    serve(load)
