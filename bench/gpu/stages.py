"""The stages of `bench/gpu.sh`, each of which writes what it found as it finds it."""

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from paceline import LLM, SamplingParams
from paceline.attend.device import tensors_on
from paceline.bench.limit import read_speed
from paceline.core.rows import Rows, RowsBuilder

OUT = Path(os.environ.get("OUT", "gpu-results"))
IS_TOY = bool(os.environ.get("GPU_TOY"))
CONTEXT, BLOCK = (24, 4) if IS_TOY else (512, 16)
ROWS, TREES = ((1, 2), (8,)) if IS_TOY else ((1, 2, 4, 8, 16, 32), (8, 16, 32, 64))
REPEATS = 1 if IS_TOY else 30
DRAFTERS = ("ngram",) if IS_TOY else ("ngram", "suffix", "model", "topk", "early_exit", "lookahead", "auto")


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def leave(name: str, found: Any) -> None:
    """Write what a stage has found so far."""
    (OUT / f"{name}.json").write_text(json.dumps(found, indent=1))


def said(*command: str) -> str:
    """What a command says; why it says nothing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)


def environment() -> None:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    found["triton"] = said(sys.executable, "-c", "import triton; print(triton.__version__)")
    found["nvidia_smi"] = said(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,clocks.mem", "--format=csv,noheader"
    )
    found["commit"] = said("git", "rev-parse", "--short", "HEAD")
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    leave("environment", found)
    found["read_gb_s"] = read_speed(1 << (20 if IS_TOY else 33), tensors_on("cuda")) / 1e9
    leave("environment", found)
    print(json.dumps(found, indent=1))


def pair_of() -> tuple[Path, ...]:
    """The bundled pair, in a rehearsal a model of two layers."""
    if not IS_TOY:
        return ()
    from tests.tiny import tiny_checkpoint

    return (tiny_checkpoint(OUT / "tiny", "llama"),)


def lossless() -> None:
    """The bundled pair: every drafter's text at 1 and 8 requests, sampled and greedy, is that of plain decoding, and no
    drafter fails."""
    prompts = [f"Tom has {n} apples and buys {n + 2} more. How many" for n in range(1 if IS_TOY else 8)]
    dtype, found = "float32" if IS_TOY else "bfloat16", list[dict[str, Any]]()
    tokens = 2 if IS_TOY else 64
    texts: dict[tuple[float, int], list[list[int]]] = {}
    llm = LLM(*pair_of(), device="cuda", dtype=dtype, blocks=256 if IS_TOY else 4096, late_weights=True)
    for drafter in ("none", *DRAFTERS):
        for temperature in (0.0, 0.8):
            for count in (1, len(prompts)):
                if IS_TOY and (temperature, count) != (0.8, len(prompts)):
                    continue
                params = SamplingParams(temperature=temperature, seed=7, max_tokens=tokens, drafter=drafter)
                begun = perf_counter()
                try:
                    got = [o.token_ids for o in llm.generate(prompts[:count], params)]
                    equal = got == texts.setdefault((temperature, count), got)
                    error = " ".join(map(repr, llm.engine.drafters.errors))[:300]
                    llm.engine.drafters.errors = []
                except Exception as failure:
                    equal, error = False, repr(failure)[:300]
                found.append(
                    {"drafter": drafter, "temperature": temperature, "requests": count, "equal": equal, "error": error,
                     "seconds": perf_counter() - begun}
                )  # fmt: skip
                leave("lossless", found)
    wrong = [each for each in found if not each["equal"] or each["error"]]
    print(f"{len(found) - len(wrong)} of {len(found)} are right", *wrong, sep="\n")
    sys.exit(bool(wrong))


def pass_(rows: int, tree: bool, device: torch.device) -> Rows:
    """Requests with one row each, or one with a tree of so many nodes, behind texts of CONTEXT tokens."""
    builder, blocks = RowsBuilder(), -(-(CONTEXT + 66) // BLOCK)
    for request in range(1 if tree else rows):
        table = [request * blocks + i for i in range(blocks)]
        nodes = rows - 1 if tree else 0
        places = range(CONTEXT, CONTEXT + 1 + nodes)
        slots = [table[place // BLOCK] * BLOCK + place % BLOCK for place in places]
        parents = [(node - 1) // 2 for node in range(nodes)]
        depths, words = list[int](), list[int]()
        for node, parent in enumerate(parents):
            depths.append(1 + (depths[parent] if node else 0))
            words.append(1 << node | (words[parent] if node else 0))
        want = list(range(1 + nodes))
        builder.add([5] * (1 + nodes), slots, table, CONTEXT, depths=depths, words=words, want=want)
    return builder.build(device)


def bandwidth(quantize: str | None) -> None:
    """Passes of a random 8 B: bytes of weights a second over what the card reads."""
    from bench.gpu.made import LLAMA_8B, TOY, decoder

    name, device = quantize or "bf16", tensors_on("cuda")
    model = decoder(TOY if IS_TOY else LLAMA_8B, quantize, torch.float32 if IS_TOY else torch.bfloat16)
    model.allocate(40 * -(-(CONTEXT + 66) // BLOCK), BLOCK)
    speed = read_speed(min(model.weight_bytes, 1 << 33), device)
    found: dict[str, Any] = {"weight_bytes": model.weight_bytes, "read_gb_s": speed / 1e9, "passes": []}
    for captured in (True, False):
        graphs, model.graphs = model.graphs, model.graphs if captured else None
        for rows, tree in [*((n, False) for n in ROWS), *((n, True) for n in TREES)] if captured else [(1, False)]:
            taken = list[float]()
            for _ in range(2 + REPEATS):
                made = pass_(rows, tree, device)
                wait()
                begun = perf_counter()
                best = model.forward(made).logits.argmax(-1).tolist()
                taken.append(perf_counter() - begun)
            assert len(best) == rows
            ms = 1e3 * median(taken[2:])
            found["passes"].append(
                {"rows": rows, "tree": tree, "captured": captured, "ms": ms, "least_ms": 1e3 * min(taken[2:]),
                 "most_ms": 1e3 * max(taken[2:]), "of_limit": 1e3 * model.weight_bytes / speed / ms}
            )  # fmt: skip
            leave(name, found)
            print(found["passes"][-1], flush=True)
        model.graphs = graphs
    found["graphs"] = str(model.graphs and model.graphs.counts)
    for rows in ROWS[:4:3]:
        found[f"kernels_{rows}"] = kernels_of(lambda rows=rows: model.forward(pass_(rows, False, device)))
        leave(name, found)
        print(rows, *found[f"kernels_{rows}"][:8], sep="\n", flush=True)


def kernels_of(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Kernels of a call by their microseconds on the device, the longest first."""
    if not torch.cuda.is_available():
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        wait()
    times = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)
    return [{"kernel": it.key[:60], "count": it.count, "us": it.self_device_time_total} for it in times[:20]]


def pair() -> None:
    """A real pair by `paceline bench`: plain, draft, auto; at 1 and 8 requests."""
    target, draft = os.environ.get("TARGET"), os.environ.get("DRAFT")
    if not target:
        print("no TARGET was given")
        return
    command = [sys.executable, "-m", "paceline", "bench", "--model", target, "--device", "cuda", "--batch", "1,8"]
    command += [*(["--draft", draft] if draft else []), "--methods", "none,model,auto" if draft else "none,auto"]
    command += ["--max-tokens", "64", "--num-prompts", "8", "--json", str(OUT / "pair.json")]
    sys.exit(subprocess.run(command, check=False).returncode)


def sweep() -> None:
    from bench.gpu.tiles import tiles

    tiles(leave)


def sweep_spans() -> None:
    from bench.gpu.spans import spans

    spans(leave)


VLLM = """
import json, os, sys, time
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], skip_tokenizer_init=True, load_format=sys.argv[2], max_model_len=2048, dtype="bfloat16")
found = []
for count in (1, 8):
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [5 + i] * 512} for i in range(count)]
    llm.generate(prompts, params)
    begun = time.perf_counter(); llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, detokenize=False))
    first = time.perf_counter() - begun
    begun = time.perf_counter(); llm.generate(prompts, params)
    found.append({"requests": count, "ms_per_token": (time.perf_counter() - begun - first) / 63 * 1e3})
print("RESULT " + json.dumps(found))
"""


def vllm() -> None:
    """The same random 8 B by vLLM, if it is here or can be installed in time."""
    from bench.gpu.made import LLAMA_8B, config

    if IS_TOY:
        print("not in a rehearsal")
        return
    python = sys.executable
    if importlib.util.find_spec("vllm") is None:
        folder = OUT / "vllm"
        subprocess.run([python, "-m", "venv", "--system-site-packages", str(folder)], check=True, timeout=30)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "vllm"], check=True, timeout=90)
    with config(LLAMA_8B) as folder:
        done = subprocess.run([python, "-c", VLLM, str(folder), "dummy"], capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-4000:])
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            leave("vllm", json.loads(line.removeprefix("RESULT ")))


def read(name: str) -> Any:
    path = OUT / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def table() -> None:
    """OUT/table.md from what the stages have left."""
    lines = ["| stage | exit code | seconds |", "|---|--:|--:|"]
    stages = [json.loads(line) for line in (OUT / "stages.jsonl").read_text().splitlines()]
    lines += [f"| {each['stage']} | {each['code']} | {each['seconds']} |" for each in stages]
    about = read("environment") or {}
    lines += ["", f"{about.get('nvidia_smi', '')}; torch {about.get('torch')}, triton {about.get('triton')}; "
                  f"{about.get('read_gb_s', 0):,.0f} GB/s; commit {about.get('commit')}"]  # fmt: skip
    if found := read("lossless"):
        lines += ["", f"Texts equal to plain decoding: {sum(each['equal'] for each in found)} of {len(found)}."]
    theirs = {each["requests"]: each["ms_per_token"] for each in read("vllm") or []}
    for name in ("bf16", "int4"):
        if found := read(name):
            lines += ["", f"{name}, {found['weight_bytes'] / 1e9:.2f} GB", ""]
            lines += [
                "| rows | kind | ms (least to most) | of the limit | over one row | over vLLM |",
                "|--:|---|---|--:|--:|--:|",
            ]
            one = found["passes"][0]["ms"]
            for each in found["passes"]:
                kind = "tree" if each["tree"] else "requests" if each["captured"] else "kernel by kernel"
                beside = theirs.get(each["rows"]) if kind == "requests" and name == "bf16" else None
                ratio = "" if beside is None else f"{beside / each['ms']:.2f}"
                ms = f"{each['ms']:.3f} ({each['least_ms']:.3f} to {each['most_ms']:.3f})"
                lines.append(
                    f"| {each['rows']} | {kind} | {ms} | {each['of_limit']:.2f} | {each['ms'] / one:.2f} | {ratio} |"
                )
    (OUT / "table.md").write_text("\n".join(lines) + "\n")


STAGES: dict[str, Callable[[], None]] = {
    "environment": environment, "lossless": lossless, "bf16": lambda: bandwidth(None),
    "int4": lambda: bandwidth("int4"), "tiles": sweep, "spans": sweep_spans, "pair": pair, "vllm": vllm, "table": table,
}  # fmt: skip
