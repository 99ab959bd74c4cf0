"""transformers: `generate` alone, with `assistant_model`, or with `prompt_lookup_num_tokens`; one prompt at a time."""

from typing import Any

import torch
import transformers
from protocol import Generate, Ids, serve


def load(spec: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    torch.set_num_threads(spec["threads"])
    model, more = causal(spec["model"]), {}
    if spec["mode"] == "draft":
        draft = causal(spec["draft"])
        config = draft.generation_config
        config.num_assistant_tokens = spec["k"]
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0  # else a draft ends early, and k is not k
        more = {"assistant_model": draft}
    elif spec["mode"] == "lookup":
        more = {"prompt_lookup_num_tokens": spec["k"]}

    @torch.inference_mode()
    def generate(prompts: Ids, max_tokens: int) -> Ids:
        texts = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            whole = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                repetition_penalty=1.0,
                eos_token_id=spec["eos"],
                pad_token_id=spec["eos"][0] if spec["eos"] else 0,
                **more,
            )
            texts.append(whole[0, len(prompt) :].tolist())
        return texts

    return generate, {"transformers": transformers.__version__, "torch": torch.__version__}


def causal(path: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


if __name__ == "__main__":
    serve(load)
