"""Make a mixture of experts of a dense model: its feed-forward neurons are clustered, and a router is trained.

    python recipes/mixture/upcycle.py MODEL OUT --data FILE [FILE ...] [--minutes 10]

MODEL is a directory in Hugging Face layout of a llama, such as SmolLM2-135M. OUT is a mixtral of 8 experts, 2 of them
active. Each expert holds the neurons that matter most for any token, and a cluster of the others, of neurons that are
active together (Zhang et al. 2022, MoEfication, arXiv 2110.01786). Weights of the two chosen experts add up to 1, so
the common neurons count once; what an expert has alone is doubled. Routers begin as a regression of what each cluster
contributes, and are then trained to say what the dense model says. A run that was cut goes on from its last checkpoint.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM

EXPERTS, ACTIVE = 8, 2
WINDOW = 256
"""Tokens of a text."""
SAVED_EVERY = 10
"""Steps between two checkpoints."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--common", type=float, default=0.5, help="share of the neurons that every expert holds")
    parser.add_argument("--texts", type=int, default=40, help="texts from which neurons are clustered")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--experts", action="store_true", help="train the experts' second matrices, too (7 GB)")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    dense = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    windows = read_windows(args.data, tokenizer)
    held, learned = windows[:16], windows[16:]
    config = mixture_config(dense.config, args.common)
    mixture = MixtralForCausalLM(config).eval()
    state = args.out / "state.pt"
    if state.exists():
        kept = torch.load(state, weights_only=True)
        mixture.load_state_dict(kept["model"])
        spent = float(kept["spent"])
        print(f"goes on after {spent / 60:.1f} minutes", flush=True)
    else:
        fill(mixture, dense, learned[: args.texts])
        spent = 0.0
        torch.save({"model": mixture.state_dict(), "spent": spent}, state)
    plain = perplexity(dense, held)
    print(f"perplexity: dense {plain:.2f}, mixture {perplexity(mixture, held):.2f}", flush=True)
    train(mixture, dense, learned, args, spent, state)
    print(f"perplexity: dense {plain:.2f}, mixture {perplexity(mixture, held):.2f}", flush=True)
    mixture.to(torch.bfloat16).save_pretrained(args.out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (args.model / name).exists():
            shutil.copy(args.model / name, args.out / name)
    state.unlink()


def read_windows(files: list[Path], tokenizer: Any) -> list[Tensor]:
    """Texts of WINDOW tokens, in an order by chance."""
    texts = []
    for file in files:
        raw = file.read_text(encoding="utf-8")
        entries = json.loads(raw) if raw.lstrip()[:1] == "[" else [json.loads(line) for line in raw.splitlines()]
        texts += ["\n".join(str(it) for it in entry.values() if it) for entry in entries[:2000]]
    random.Random(0).shuffle(texts)
    ids = torch.tensor(tokenizer("\n\n".join(texts[:2000]))["input_ids"])
    return list(ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW))


def mixture_config(dense: Any, common: float) -> MixtralConfig:
    inner = dense.intermediate_size
    shared = int(inner * common) // EXPERTS * EXPERTS
    return MixtralConfig(
        vocab_size=dense.vocab_size, hidden_size=dense.hidden_size, num_hidden_layers=dense.num_hidden_layers,
        intermediate_size=shared + (inner - shared) // EXPERTS, num_attention_heads=dense.num_attention_heads,
        num_key_value_heads=dense.num_key_value_heads, max_position_embeddings=dense.max_position_embeddings,
        rms_norm_eps=dense.rms_norm_eps, tie_word_embeddings=dense.tie_word_embeddings, sliding_window=None,
        bos_token_id=dense.bos_token_id, eos_token_id=dense.eos_token_id, pad_token_id=None,
        num_local_experts=EXPERTS, num_experts_per_tok=ACTIVE, rope_parameters=dense.rope_parameters,
    )  # fmt: skip


@torch.no_grad()
def fill(mixture: Any, dense: Any, windows: list[Tensor]) -> None:
    """The dense model's weights, its feed-forward parts taken apart."""
    inputs: list[list[Tensor]] = [[] for _ in dense.model.layers]
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _, given, kept=kept: kept.append(given[0].flatten(0, 1)))
        for layer, kept in zip(dense.model.layers, inputs)
    ]
    for window in windows:
        dense(window[None])
    for hook in hooks:
        hook.remove()
    same = {name: it for name, it in dense.state_dict().items() if ".mlp." not in name}
    assert not mixture.load_state_dict(same, strict=False).unexpected_keys
    for number, (layer, ours) in enumerate(zip(dense.model.layers, mixture.model.layers)):
        split(layer.mlp, ours.mlp, torch.cat(inputs[number]))
        print(f"layer {number} taken apart", flush=True)


def split(mlp: Any, mixture: Any, x: Tensor) -> None:
    """Experts and router of one layer, from its inputs x [N, hidden]."""
    gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    width = mixture.experts.down_proj.shape[2]
    own = (gate.shape[0] - width) // (EXPERTS - 1)
    worth = F.silu(x @ gate.T) * (x @ up.T) * down.norm(dim=0)  # [N, neurons]
    order = worth.square().mean(0).argsort(descending=True)
    common, rest = order[: width - own], order[width - own :]
    groups = clusters(worth[:, rest].abs(), own)
    share = torch.stack([worth[:, rest[group]].square().sum(1) for group in groups], 1)
    share = share / share.sum(1, keepdim=True)
    for number, group in enumerate(groups):
        mine = torch.cat((common, rest[group]))
        mixture.experts.gate_up_proj[number].copy_(torch.cat((gate[mine], up[mine])))
        doubled = torch.cat((torch.ones(len(common)), torch.full((own,), float(ACTIVE))))
        mixture.experts.down_proj[number].copy_(down[:, mine] * doubled)
    mixture.gate.weight.copy_(router(x, share))


def clusters(active: Tensor, size: int) -> list[Tensor]:
    """EXPERTS groups of `size` neurons that are active together, from how active they are [N, neurons]."""
    profile = F.normalize(active - active.mean(0), dim=0).T  # [neurons, N]
    middle = profile[torch.randperm(len(profile))[:EXPERTS]]
    for _ in range(12):
        near = profile @ middle.T
        whose = torch.full((len(profile),), -1)
        free = [size] * EXPERTS
        for place in near.flatten().argsort(descending=True).tolist():
            neuron, group = divmod(place, EXPERTS)
            if whose[neuron] < 0 and free[group]:
                whose[neuron] = group
                free[group] -= 1
        middle = torch.stack([F.normalize(profile[whose == group].mean(0), dim=0) for group in range(EXPERTS)])
    return [(whose == group).nonzero()[:, 0] for group in range(EXPERTS)]


@torch.enable_grad()
def router(x: Tensor, share: Tensor) -> Tensor:
    """Weights [EXPERTS, hidden] whose softmax is each expert's share [N, EXPERTS] of what they contribute."""
    weight = torch.zeros(EXPERTS, x.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1e-2)
    for step in range(120):
        some = torch.arange(step % 4, len(x), 4)
        loss = F.cross_entropy(x[some] @ weight.T, share[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weight.detach()


def train(mixture: Any, dense: Any, windows: list[Tensor], args: Any, spent: float, state: Path) -> None:
    """Routers, and the experts' second matrices where memory allows (`--experts`), by what the dense model says."""
    for name, weight in mixture.named_parameters():
        weight.requires_grad_("mlp.gate" in name or (args.experts and "down_proj" in name))
    optimizer = torch.optim.AdamW([it for it in mixture.parameters() if it.requires_grad], lr=args.rate)
    order = random.Random(int(spent))
    step = 0
    while spent < 60 * args.minutes:
        begun = time.perf_counter()
        batch = order.choice(windows)[None]
        with torch.no_grad():
            said = dense(batch).logits.log_softmax(-1)
        ours = mixture(batch).logits.log_softmax(-1)
        loss = F.kl_div(ours, said, reduction="sum", log_target=True) / batch.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spent += time.perf_counter() - begun
        step += 1
        if step % SAVED_EVERY == 0:
            print(f"{spent / 60:.1f} minutes, step {step}: {loss.item():.3f} nats from the dense model", flush=True)
            torch.save({"model": mixture.state_dict(), "spent": spent}, state)


@torch.no_grad()
def perplexity(model: Any, windows: list[Tensor]) -> float:
    losses = [model(window[None], labels=window[None]).loss for window in windows]
    return float(torch.stack(losses).mean().exp())


if __name__ == "__main__":
    main()
