"""OpenVINO GenAI: `LLMPipeline` on its continuous batching, alone, with a draft model, or with prompt lookup."""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import Generate, Ids, serve

NGRAM = 3
"""Longest run of tokens that prompt lookup looks for."""


def load(spec: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    # bf16 and one thread end in SIGFPE on CPUs with AMX; f32 activations are the way out there
    device = {
        "INFERENCE_NUM_THREADS": spec["threads"],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if spec["threads"] > 1 else "f32",
    }
    more: dict[str, Any] = {}
    if spec["mode"] == "draft":
        more = {"draft_model": genai.draft_model(spec["draft"], "CPU", **device)}
    elif spec["mode"] == "lookup":
        more = {"prompt_lookup": True}
    pipe = genai.LLMPipeline(spec["model"], "CPU", scheduler_config=scheduler(), **more, **device)
    config = genai.GenerationConfig()
    config.do_sample = False
    config.apply_chat_template = False
    config.stop_token_ids = set(spec["eos"])  # pipelines that draft do not take it from the checkpoint
    if spec["mode"] != "plain":
        config.num_assistant_tokens = spec["k"]
    if spec["mode"] == "lookup":
        config.max_ngram_size = NGRAM

    def generate(prompts: Ids, max_tokens: int) -> Ids:
        config.max_new_tokens = max_tokens
        result = pipe.generate(padded(prompts), config)
        read, given = result.perf_metrics.get_num_input_tokens(), sum(map(len, prompts))
        if len(prompts) == 1 and read != given:
            raise ValueError(f"OpenVINO read {read} prompt tokens, but {given} were given.")
        return [list(ids) for ids in result.tokens]

    return generate, {"openvino_genai": genai.__version__, "openvino": ov.__version__}


def scheduler() -> Any:
    """The pipeline's own latency settings, but without the prefix cache, which would spare later rounds the prompt."""
    config = genai.SchedulerConfig()
    config.enable_prefix_caching = False
    config.max_num_batched_tokens = 2**31 - 1
    return config


def padded(prompts: Ids) -> Any:
    """Ids and mask, padded on the left; the pipeline takes each prompt's own length from the mask."""
    width = max(map(len, prompts))
    ids, mask = np.zeros((2, len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask))


if __name__ == "__main__":
    serve(load)
