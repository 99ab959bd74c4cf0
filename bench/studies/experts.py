"""What placing experts by recorded routes saves, on a mixture whose routes were trained (arXiv 2503.04398).

    python bench/studies/experts.py OUT [--text FILE.json ...] [--steps 300] [--threads 2]

A small mixture (OLMoE's layers: 4 of 32 experts, 4 for each token) is trained on the texts into OUT, unless one is
there. Its routes are recorded; tables come of the first four fifths, and all figures are of the last fifth:

  - the share of routes that stay at their token's home (LAR), by layer, for four tables: round robin and EPLB's rule
    with rows cut into slices, round robin with predicted homes, and co-clustered experts with predicted homes;
  - pairs sent to other processes next to round robin, and (1 - LAR) / (1 - 1/D);
  - the same bytes as counted between two processes, and that their text is that of one;
  - the time of a layer on 8 and 64 devices, computed from the routes, at the paper's 400 GB/s and at 50 GB/s.

A device multiplies 200 TFLOP/s in the last part, whose sizes are those of DeepSeek-V2-Lite's experts (2,048 x 1,408, 2
bytes a number). Besides the trained routes it takes drawn ones (64 experts, 6 for each token), in which a token's own
six have 0.9 of its routes, as the paper reports, and tokens have Zipf's law.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from paceline import LLM, SamplingParams
from paceline.cluster.experts.cocluster import balanced, in_turn
from paceline.cluster.experts.profile import account, table_of
from paceline.cluster.experts.routes import RouteRecord, record
from paceline.model.spread.table import RouteTable

HIDDEN, WIDTH, BYTES = 2048, 1408, 2
FLOPS = 200e12
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = [text for file in args.text for text in strings(file)]
    if not (args.out / "config.json").exists():
        train(args.out, texts, args.steps)
    routes, llm = record(args.out, texts[len(texts) // 2 :], args.tokens)
    with llm:
        vocab = llm.engine.model.vocab_size
    print(f"{len(routes.tokens):,} tokens; figures are of the last fifth, in passes of {BATCH} rows")
    for devices in (2, 4, 8):
        shares(routes, vocab, devices)
    processes(args.out, routes, vocab, args.rounds)
    print("\ntime of a layer, computed")
    drawn = draw(64, 6, 4096, 40_000)
    for name, those, size in (("trained, 32 experts", routes, vocab), ("drawn, 64 experts", drawn, 4096)):
        for devices in (8, 64):
            if devices <= min(those.counts.values()):
                simulate(name, those, size, devices)


def strings(file: Path) -> list[str]:
    """Every long string of a JSON or JSON-lines file."""
    raw = file.read_text(encoding="utf-8")
    items = json.loads(raw) if file.suffix == ".json" else [json.loads(line) for line in raw.splitlines() if line]
    return [" ".join(str(v) for v in item.values()) for item in items if isinstance(item, dict)]


def train(out: Path, texts: list[str], steps: int) -> None:
    """A mixture of 32 experts, with a tokenizer of 2,048 entries, on the first half of the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    half = texts[: len(texts) // 2]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(half[:4000], trainers.BpeTrainer(
        vocab_size=2048, special_tokens=["<bos>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    ))  # fmt: skip
    config = AutoConfig.for_model(
        "olmoe", vocab_size=2048, hidden_size=96, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, num_experts=32, num_experts_per_tok=4, max_position_embeddings=512, bos_token_id=0,
        eos_token_id=1, pad_token_id=1, router_aux_loss_coef=0.01, output_router_logits=True, norm_topk_prob=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    ids = [i for text in half[:6000] for i in [*bpe.encode(text).ids, 1]]
    stream = torch.Generator().manual_seed(0)
    data, optimizer = torch.tensor(ids), torch.optim.AdamW(model.parameters(), lr=2e-3)
    begun = time.perf_counter()
    for step in range(steps):
        at = torch.randint(len(data) - 129, (8,), generator=stream)
        batch = torch.stack([data[i : i + 128] for i in at.tolist()])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - begun:.0f} s", flush=True)
    model.config.output_router_logits = False
    model.save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<eos>").save_pretrained(out)


def split(routes: RouteRecord) -> tuple[RouteRecord, RouteRecord]:
    cut = len(routes.tokens) * 4 // 5
    return routes.cut(0, cut), routes.cut(cut, len(routes.tokens))


def tables(routes: RouteRecord, vocab: int, devices: int) -> dict[str, RouteTable]:
    """Of the first four fifths."""
    learned, _ = split(routes)
    turn = {layer: in_turn(count, devices) for layer, count in routes.counts.items()}
    eplb = table_of(learned, vocab, devices, place=lambda counts, d: balanced(counts.sum(0), d))
    return {
        "round robin, slices": RouteTable(devices, 1.0, turn),
        "EPLB's rule, slices": RouteTable(devices, 1.0, eplb.places),
        "round robin, predicted": table_of(
            learned, vocab, devices, 1.25, lambda counts, d: in_turn(counts.shape[1], d)
        ),
        "co-clustered, predicted": table_of(learned, vocab, devices, 1.25),
    }


def shares(routes: RouteRecord, vocab: int, devices: int) -> None:
    """LAR and pairs sent."""
    _, apart = split(routes)
    print(f"\n{devices} processes: share at home by layer | all, pairs sent next to round robin, formula; busiest")
    base = 0
    for name, table in tables(routes, vocab, devices).items():
        found = account(apart, table, BATCH)
        pairs, local = (sum(getattr(it, part) for it in found.values()) for part in ("pairs", "local"))
        base = base or pairs - local
        share, most = local / pairs, sum(it.most_pairs for it in found.values())
        by_layer = " ".join(f"{it.share:.3f}" for it in found.values())
        right = " ".join(f"{it.right / it.rows:.2f}" for it in found.values())
        print(
            f"{name:24} {by_layer} | {share:.3f}, {(pairs - local) / base:.3f}, {(1 - share) / (1 - 1 / devices):.3f};"
            f" {most * devices / pairs:.2f} of the mean; right homes {right}"
        )


def processes(model: Path, routes: RouteRecord, vocab: int, rounds: int) -> None:
    """Texts, bytes and times of two processes next to one."""
    prompts = [routes.tokens[i : i + 64].tolist() for i in range(len(routes.tokens) - 1024, len(routes.tokens), 64)]
    wish = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    options = {"dtype": "float32", "threads": 1, "drafter": "none", "blocks": 256, "prefix_cache": False}
    print("\ntwo processes, one thread each: bytes by kind; seconds (median of rounds)")
    texts, seen, combine = [], {}, 0
    for name in ("one process", "round robin, slices", "co-clustered, predicted"):
        more = {}
        if name != "one process":
            table = tables(routes, vocab, 2)[name]
            table.save(model / "routes.table")
            more = {"expert_parallel": 2, "expert_table": model / "routes.table"}
        with LLM(model, **options, **more) as llm:
            times = []
            for _ in range(rounds):
                begun = time.perf_counter()
                answers = [a.token_ids for a in llm.generate(prompts, wish, progress=False)]
                times.append(time.perf_counter() - begun)
            texts = texts or answers
            assert answers == texts, f"{name}: another text"
            seen[name] = llm.engine.model.spread.traffic() if more else {}
        print(f"{name:24} {median(times):.2f} s ({min(times):.2f} to {max(times):.2f})  {seen[name]}")
        if more:
            combine = combine or seen[name]["combine"]
            print(f"{'':24} combined bytes next to round robin: {seen[name]['combine'] / combine:.3f}")


def draw(experts: int, active: int, vocab: int, count: int) -> RouteRecord:
    """Routes of tokens by Zipf's law, 0.9 of them to the token's own experts; those of one topic are related."""
    stream = torch.Generator().manual_seed(0)
    topics = torch.stack([torch.randperm(experts, generator=stream)[: 3 * active] for _ in range(24)])
    own = torch.stack([
        topics[t % 24][torch.randperm(3 * active, generator=stream)[:active]] for t in range(vocab)
    ])  # fmt: skip
    zipf = 1.0 / torch.arange(1, vocab + 1)
    tokens = torch.multinomial(zipf, count, replacement=True, generator=stream)
    mine = torch.zeros(vocab, experts).scatter_(1, own, 1.0)
    chosen = []
    for first in range(0, count, 4096):
        part = tokens[first : first + 4096]
        lost = mine[part] * (torch.rand(len(part), experts, generator=stream) < 0.1)
        worth = mine[part] - lost + 0.5 * torch.rand(len(part), experts, generator=stream)
        chosen.append(worth.topk(active, 1).indices)
    return RouteRecord(tokens, {0: torch.cat(chosen)}, {0: experts})


def simulate(name: str, routes: RouteRecord, vocab: int, devices: int) -> None:
    """Seconds of a layer's mixture: rows to their homes and back, dispatch and combine, and the busiest device."""
    _, apart = split(routes)
    batch = 64 * devices
    passes = -(-len(apart.tokens) // batch)
    for bandwidth in (400e9, 50e9):
        found = {}
        for which, table in tables(routes, vocab, devices).items():
            it = next(iter(account(apart, table, batch).values()))
            moved = 2 * (devices - 1) / devices * batch * HIDDEN * BYTES / bandwidth
            sent = it.most_out / passes * HIDDEN * BYTES / bandwidth
            work = it.most_pairs / passes * 6 * HIDDEN * WIDTH / FLOPS
            found[which] = (moved + sent + work, sent)
        base, sent = found["round robin, slices"]
        ours, rest = found["co-clustered, predicted"]
        print(
            f"{name}, {devices} devices, {bandwidth / 1e9:.0f} GB/s: {1e6 * base:.1f} us ({sent / base:.0%} of it "
            f"dispatch and combine) to {1e6 * ours:.1f} us ({rest / ours:.0%}): {base / ours:.2f}x"
        )


if __name__ == "__main__":
    main()
