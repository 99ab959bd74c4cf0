"""Steps and memory of a recurrent hybrid: a tree of 16 candidates in one pass, beside its paths one by one, and beside
plain decoding; and what a text keeps. Random weights: figures of time and memory do not depend on them.

    python bench/studies/states.py
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from paceline.core.rows import Rows, RowsBuilder
from paceline.model.decoder import Decoder
from paceline.model.load import load_model

BLOCK = 256
PROMPT = 64
PARENTS = [-1, -1, -1, 0, 0, 1, 2, 3, 3, 4, 5, 7, 7, 8, 11, 12]
"""A tree of 16 nodes, six levels deep."""


def checkpoint(path: Path, family: str, hidden: int, layers: int) -> Path:
    """Random weights of a hybrid: four recurrent layers to one of attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 8192, "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "head_dim": 64,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    own = {
        "bamba": {
            "attn_layer_indices": list(range(4, layers, 5)), "mamba_n_heads": hidden // 32, "mamba_d_head": 64,
            "mamba_d_state": 128, "mamba_n_groups": 1,
        },
        "qwen3_5_text": {
            "full_attention_interval": 5, "linear_num_key_heads": hidden // 64, "linear_num_value_heads": hidden // 64,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        },
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**sizes, **own[family]}))
    model.save_pretrained(path)
    return path


def path_to(node: int) -> list[int]:
    return [*(path_to(PARENTS[node]) if PARENTS[node] >= 0 else []), node]


def tree(text: int) -> Rows:
    """The root and all candidates of one text."""
    words = list[int]()
    for node, parent in enumerate(PARENTS):
        words.append(1 << node | (words[parent] if parent >= 0 else 0))
    depths = [len(path_to(node)) for node in range(len(PARENTS))]
    builder, rows = RowsBuilder(), 1 + len(PARENTS)
    slots = [text * BLOCK + PROMPT + i for i in range(rows)]
    builder.add(list(range(rows)), slots, [text], PROMPT, depths=depths, words=words, want=list(range(rows)))
    return builder.build()


def paths() -> Rows:
    """The root and one path, for each candidate as a text of its own."""
    builder = RowsBuilder()
    for node in range(len(PARENTS)):
        rows = 1 + len(path_to(node))
        slots = [node * BLOCK + PROMPT + i for i in range(rows)]
        builder.add(list(range(rows)), slots, [node], PROMPT, want=list(range(rows)))
    return builder.build()


def plain() -> Rows:
    builder = RowsBuilder()
    builder.add([1], [PROMPT], [0], PROMPT)
    return builder.build()


def held(decoder: Decoder) -> tuple[int, int]:
    """Bytes of states at work, and of records, in use now."""
    states = decoder.states
    record = sum(it[0].numel() * it.element_size() for it in states.records if len(it))
    return len(states.tips) * decoder.state_bytes, len(states.known) * record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    for family in ("bamba", "qwen3_5_text"):
        with tempfile.TemporaryDirectory() as folder:
            decoder = load_model(checkpoint(Path(folder), family, args.hidden, args.layers), dtype="float32")
        decoder.allocate(len(PARENTS), BLOCK)
        ids, ends = list(range(PROMPT)), [text * BLOCK + PROMPT - 1 for text in range(len(PARENTS))]
        for text in range(len(PARENTS)):
            builder = RowsBuilder()
            builder.add(ids, [text * BLOCK + i for i in range(PROMPT)], [text], 0)
            decoder.forward(builder.build())
        decoder.keep(ends)
        kinds = {"plain": plain(), "tree": tree(0), "paths": paths()}
        took: dict[str, list[float]] = {name: [] for name in kinds}
        memory = {}
        for _ in range(args.repeats + 1):
            for name, rows in kinds.items():
                started = time.perf_counter()
                decoder.forward(rows)
                took[name].append(time.perf_counter() - started)
                states, records = held(decoder)
                others = (len(PARENTS) - 1) * decoder.state_bytes
                memory[name] = (states - others, records)
                decoder.keep(ends)
        print(f"{family}: hidden {args.hidden}, {args.layers} layers, state {decoder.state_bytes / 2**20:.2f} MiB")
        for name, each in took.items():
            ordered = sorted(each[1:])
            spread = f"{ordered[0] * 1e3:.1f} to {ordered[-1] * 1e3:.1f}"
            print(f"  {name:6} {statistics.median(ordered) * 1e3:8.1f} ms ({spread})")
        ratios = [tree / path for tree, path in zip(took["tree"][1:], took["paths"][1:], strict=True)]
        print(f"  tree / paths {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        bytes_of = {name: sum(parts) for name, parts in memory.items()}
        print(f"  states and records: plain {bytes_of['plain']:,}, tree {bytes_of['tree']:,}, "
              f"ratio {bytes_of['tree'] / bytes_of['plain']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
