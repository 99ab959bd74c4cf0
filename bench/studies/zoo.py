"""What fine-tunes that share a base take and give, in one engine and in engines of their own (arXiv 2404.18322).

    python bench/studies/zoo.py BASE TUNES [--parts disk memory same served simulate] [--requests 64]

TUNES is a directory of fine-tunes, such as recipes/zoo/train.py makes. Adapters there are served as such.

  - disk: bytes of a zoo of all, next to 1 + the sum of what each changes;
  - memory: resident bytes of a process with the base, and with all (private memory, from /proc/self/smaps_rollup);
  - same: are texts of all in one batch, and of a chain of the first two fine-tunes, those of each model alone (the
    chain as a checkpoint of these layers), with drafts (`--drafters`) and without?
  - served: requests whose models have Zipf's law, by one engine with a zoo, and by engines of their own that get the
    same memory and come and go (`serve --models`): throughput, and 50th and 95th percentile of a request's time;
  - simulate: 12 devices on 4 servers, 100 Gb/s between them, as in the paper, on a virtual clock: models that lie whole
    on devices, and blocks placed by the paper's rule and by best fit.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.cluster.blocks.simulate import Ways, ZooSimulator
from paceline.model import blockzoo, parts
from paceline.model.blockzoo import digests_of
from paceline.model.decoder import Decoder
from paceline.model.spread.place import BlockPlaces, Demand, ZooBlock, ZooDevice, best_fit, greedy

PROMPTS = [
    "The capital of France is", "def fibonacci(n):", "Once upon a time there was a",
    "Question: A train travels 60 miles",
    "In the beginning", "Write a function that sorts", "She looked at the old house and", "The three most important",
]  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SMALL: dict[str, Any] = {"blocks": 512, "max_requests": 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("tunes", type=Path)
    parser.add_argument("--parts", nargs="+", default=["disk", "memory", "same", "served", "simulate"])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--engines", nargs="+", default=["zoo", "own"], help="for the part served")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafters", nargs="+", default=["none", "ngram", "early_exit"], help="for the part same")
    args = parser.parse_args()
    found = sorted(it for it in args.tunes.iterdir() if it.is_dir())
    loras = {it.name: it for it in found if (it / "adapter_config.json").exists()}
    models = {it.name: it for it in found if it.name not in loras}
    for part in args.parts:
        print(f"== {part}", flush=True)
        PARTS[part](args, models, loras)


def deltas(base: Path, models: dict[str, Path]) -> dict[str, float]:
    """What each changes, as a share of the base."""
    mine = digests_of(base)
    whole = sum(count for _, count in mine.values())
    other = {name: digests_of(path) for name, path in models.items()}
    return {
        name: sum(count for it, (digest, count) in its.items() if mine[it][0] != digest) / whole
        for name, its in other.items()
    }


def disk(args: argparse.Namespace, models: dict[str, Path], loras: dict[str, Path]) -> None:
    shares = deltas(args.base, models)
    print("delta of each:", {name: round(share, 4) for name, share in shares.items()})
    with tempfile.TemporaryDirectory() as folder:
        parts.home = lambda: Path(folder)
        blockzoo.add(args.base, "base")
        alone = blockzoo.disk_bytes()
        for name, path in models.items():
            blockzoo.add(path, name)
        here = blockzoo.disk_bytes()
    expected = 1 + sum(shares.values())
    print(f"{len(models)} fine-tunes: {here / alone:.4f} times the base, 1 + sum of deltas is {expected:.4f}, "
          f"{here / alone / expected - 1:+.2%}; whole copies are {1 + len(models)}")  # fmt: skip


def rollup() -> int:
    """Private bytes of this process."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(n) * 1024 for n in re.findall(r"Private_(?:Clean|Dirty):\s+(\d+)", text))


def memory(args: argparse.Namespace, models: dict[str, Path], loras: dict[str, Path]) -> None:
    """In processes of their own: the base, the base with all, and with the base itself as many times."""
    shares = deltas(args.base, models)
    ones = {"none": {}, "all": models, "equal": {f"e{i}": args.base for i in range(len(models))}}
    sizes = {}
    for word, zoo in ones.items():
        code = (
            "import sys, gc, json; sys.path.insert(0, sys.argv[4])\n"
            "from zoo import rollup; from paceline import LLM\n"
            "llm = LLM(sys.argv[1], zoo=json.loads(sys.argv[2]), drafter='none', weights_cache=sys.argv[3] == 'kept',"
            " blocks=64, max_requests=16)\n"
            "gc.collect(); print(rollup(), llm.engine.model.weight_bytes)"
        )
        for kept in ("fresh", "kept", "kept"):
            arguments = [
                str(args.base),
                json.dumps({k: str(v) for k, v in zoo.items()}),
                kept,
                str(Path(__file__).parent),
            ]
            out = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
            private, weights = map(int, out.stdout.split()[-2:])
            sizes[word, kept] = private
    # embedding and packed head both lie in memory where the two are tied
    whole = weights + embedding_bytes(args.base)
    for kept in ("fresh", "kept"):
        added = sizes["all", kept] - sizes["none", kept]
        expected = sum(shares.values()) * sum(count for _, count in digests_of(args.base).values()) * 2
        total, want = (whole + added) / whole, (whole + expected) / whole
        print(f"{kept}: process with the base {sizes['none', kept] / 1e6:.1f} MB, with {len(models)} fine-tunes "
              f"{sizes['all', kept] / 1e6:.1f} MB (+{added / 1e6:.1f}, expected +{expected / 1e6:.1f}); weights are "
              f"{total:.4f} times the base's {whole / 1e6:.1f} MB, 1 + sum of deltas is {want:.4f}, "
              f"{total / want - 1:+.2%}; "
              f"equal ones +{(sizes['equal', kept] - sizes['none', kept]) / 1e6:.1f} MB")  # fmt: skip


def embedding_bytes(base: Path) -> int:
    config = json.loads((base / "config.json").read_text())
    return 2 * int(config["vocab_size"]) * int(config["hidden_size"])


def mixed(folder: Path, models: dict[str, Path]) -> tuple[str, Path]:
    """A chain of the first two, which part in the middle of what both change, and its checkpoint."""
    first, second = [*models.items()][:2]
    weights, others = (load_file(path / "model.safetensors") for _, path in (first, second))
    layers = json.loads((first[1] / "config.json").read_text())["num_hidden_layers"]
    for name, tensor in others.items():
        if f".layers.{layers - 1}." in name or not name.startswith("model.layers."):
            weights[name] = weights[name] if "embed" in name else tensor
    at = folder / "chain"
    shutil.copytree(first[1], at)
    save_file(weights, at / "model.safetensors", {"format": "pt"})
    return f"{first[0]}[0:{layers - 1}]+{second[0]}[{layers - 1}:{layers}]", at


def same(args: argparse.Namespace, models: dict[str, Path], loras: dict[str, Path]) -> None:
    want = {}
    with tempfile.TemporaryDirectory() as folder:
        chain = dict([mixed(Path(folder), models)])
        for name, path in {"": args.base, **models, **chain}.items():
            with LLM(path, drafter="none", threads=args.threads, **SMALL) as llm:
                want[name] = [out.token_ids for out in llm.generate(PROMPTS, GREEDY, progress=False)]
    for drafter in args.drafters:
        zoo = {"zoo": models, "lora": loras, "threads": args.threads}
        with LLM(args.base, drafter=drafter, nodes=None if drafter == "none" else 3, **zoo, **SMALL) as llm:
            wishes = [(name, prompt) for prompt in PROMPTS for name in want]
            outs = llm.generate(
                [prompt for _, prompt in wishes], [replace(GREEDY, adapter=name) for name, _ in wishes], progress=False
            )
            got: dict[str, list[Any]] = {name: [] for name in want}
            for (name, _), out in zip(wishes, outs):
                got[name].append(out.token_ids)
            table = cast(Decoder, llm.engine.model).chains
            assert table is not None
            kept = sum(out.stats.tau for out in outs) / len(outs)
            print(f"{drafter}: {sum(got[it] == want[it] for it in want)} of {len(want)} models have the texts "
                  "that they have "
                  f"alone; {len({str(it) for it in want.values()})} different; {kept:.2f} tokens a pass; calls "
                  f"{table.passes}, of a part of the rows {table.parted}", flush=True)  # fmt: skip


def served(args: argparse.Namespace, models: dict[str, Path], loras: dict[str, Path]) -> None:
    """One server each; eight clients, the same requests in the same order."""
    rng = random.Random(0)
    names = list(models)
    rates = [1 / (rank + 1) for rank in range(len(names))]
    wishes = [(rng.choices(names, rates)[0], rng.choice(PROMPTS)) for _ in range(args.requests)]
    budget = "1160M"
    common = ["--port", "0", "--drafter", "none", "--threads", str(args.threads), "--max-requests", "8",
              "--max-model-len", "512"]  # fmt: skip
    zoo = [str(args.base), *common, "--memory", budget, *(p for n in names for p in ("--zoo", f"{n}={models[n]}"))]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "models.toml"
        room = 'memory = "1160M"\n'
        each = "".join(f'[models."{n}"]\nmodel = "{p}"\nmemory = "570M"\n' for n, p in models.items())
        table.write_text(room + each)
        for word, arguments in (("zoo", zoo), ("own", ["--models", str(table), *common])):
            if word not in args.engines:
                continue
            seconds, wall, tokens = asked([*arguments], wishes)
            ordered = sorted(seconds)
            print(f"{word}: {tokens / wall:.1f} tokens/s, {len(wishes)} requests in {wall:.1f} s; p50 "
                  f"{ordered[len(ordered) // 2]:.2f} s, p95 "
                  f"{ordered[int(0.95 * len(ordered))]:.2f} s", flush=True)  # fmt: skip


def asked(arguments: list[str], wishes: list[tuple[str, str]]) -> tuple[list[float], float, int]:
    """(seconds of each request, seconds of all, tokens), by a server of its own."""
    child = subprocess.Popen(
        [sys.executable, "-m", "paceline", "serve", *arguments], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        address = re.search(r"at (\S+)/v1", line)
        assert address, line
        threading.Thread(target=child.stdout.read, daemon=True).start()

        def ask(wish: tuple[str, str]) -> float:
            began = time.monotonic()
            body = {"model": wish[0], "prompt": wish[1], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            while True:
                request = urllib.request.Request(
                    f"{address[1]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                try:
                    with urllib.request.urlopen(request, timeout=300) as answer:
                        json.load(answer)
                    return time.monotonic() - began
                except urllib.error.HTTPError as error:
                    if error.code not in (429, 503):
                        raise RuntimeError(error.read().decode()) from None
                    time.sleep(0.2)  # the models that are loaded are in use; a client asks again

        ask(wishes[0])
        began = time.monotonic()
        with ThreadPoolExecutor(8) as clients:
            seconds = list(clients.map(ask, wishes))
        return seconds, time.monotonic() - began, 24 * len(wishes)
    finally:
        child.terminate()
        child.wait(30)


def simulate(args: argparse.Namespace, models: dict[str, Path], loras: dict[str, Path]) -> None:
    """Apps of a 7B base (13 GB, 8 runs of layers, 25 ms a pass) of which each changes the last run, on 80 GB devices
    that have 40 GB left for weights. `load`: the apps' passes next to those of all devices with 6 rows a batch."""
    gigabyte, runs = 10**9, 8
    size, seconds = 13 * gigabyte // runs, 0.025 / runs
    ways = Ways(near=0.00005, far=0.00005 + 8192 / 12.5e9)
    for apps in (12, 24, 48):
        rng = random.Random(apps)
        for load in (0.5, 0.8):
            devices = [ZooDevice(i // 3, 40 * gigabyte) for i in range(12)]
            weights = [1 / (rank + 1) for rank in range(apps)]
            rate = load * 12 / 0.025 * 6 / sum(weights)
            rng.shuffle(weights)
            whole = {f"m{a}": ZooBlock(f"m{a}", 13 * gigabyte, 0.025) for a in range(apps)}
            plain = [Demand((f"m{a}",), w * rate) for a, w in enumerate(weights)]
            blocks = {f"base{i}": ZooBlock(f"base{i}", size, seconds) for i in range(runs - 1)}
            blocks |= {f"own{a}": ZooBlock(f"own{a}", size, seconds) for a in range(apps)}
            chained = [
                Demand((*(f"base{i}" for i in range(runs - 1)), f"own{a}"), w * rate) for a, w in enumerate(weights)
            ]
            line = []
            for word, rule, those, demands in (
                ("models", greedy, whole, plain), ("greedy", greedy, blocks, chained),
                ("best fit", best_fit, blocks, chained),
            ):  # fmt: skip
                try:
                    places: BlockPlaces = rule(those, demands, devices, 1.0)
                except Exception as error:
                    line.append(f"{word}: {error}")
                    continue
                out = ZooSimulator(those, places, ways).run(demands, 1500, 16, seed=1)
                line.append(f"{word} p50 {out.percentile(0.5):.2f} p95 {out.percentile(0.95):.2f} s, "
                            f"{out.tokens / out.end:.0f} tokens/s, rows a batch {out.rows / out.batches:.1f}, "
                            f"busy {out.busy / out.end / 12:.0%}")  # fmt: skip
            print(f"{apps} apps, load {load}: " + "; ".join(line), flush=True)


PARTS = {"disk": disk, "memory": memory, "same": same, "served": served, "simulate": simulate}


if __name__ == "__main__":
    main()
