"""Tools side by side: all are loaded at once, and each prompt goes through one after the other, in turns.

    python bench/peers/turns.py ROOT --prompts A.jsonl,B.jsonl --each 6 --tokens 32 CASE ... [--record FILE]

CASE is TOOL:MODE or TOOL:MODE:NAME=VALUE,...; `k` is the length of drafts, and any other name is an option of Paceline:

    paceline:plain ikllama:plain paceline:draft:draft_vocab=32k,draft_quantize=int4 ikllama:draft:k=3 ikllama:draft:k=5

`paceline bench --peers` keeps one process alive at a time, and its rounds are minutes apart. Here the answers that are
compared are seconds apart, for machines whose speed changes by the minute; it needs memory for all cases together.
Only the generate call is timed, prompt included. Every other prompt is asked in reverse order of the cases.

`--hold S`: wait for a line on standard input before the first prompt and after every S seconds, for a machine that is
quiet in windows only. `--record` appends a line of JSON for each answer; the summary is of all that the file holds.
`--cut N`: prompts are N tokens of all texts strung together, each from another place, for the time to a first token.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from paceline.bench.peers import DRAFT_MODES, WORKER_FIELDS, PeerCase, PeerError, PeerWish, Worker, read, ready
from paceline.bench.prompts import encode, read_prompts
from paceline.engine.text import Text

OWN_TOOL = "paceline"
PLAIN_MODE = "plain"
WARM_UP_TOKENS = 8
WARM_UP_PROMPT = 64
"""Tokens of a prompt that the untimed first call takes."""
CUT_STEP = 97
"""Tokens between the starts of two prompts of `--cut`."""


class Answered(NamedTuple):
    """Answers of one case to one group of prompts."""

    case: str
    prompt: str
    seconds: float
    tokens: int
    ids: list[list[int]]


class Side:
    """A tool in a process of its own."""

    def __init__(self, name: str, entries: dict[str, dict[str, Any]], weights: str, common: dict[str, Any]) -> None:
        tool, _, asked = name.partition(":")
        mode, _, rest = asked.partition(":")
        if tool not in entries:
            raise SystemExit(f"{tool} is not set up; there are {', '.join(entries)}.")
        if weights not in entries[tool]["models"] or mode not in entries[tool]["modes"]:
            raise SystemExit(f"{name}: {tool} is not set up for {mode or 'no mode'} with {weights}.")
        entry, given = entries[tool], dict(pair.split("=", 1) for pair in rest.split(",") if pair)
        k = given.pop("k", None)
        models = entry["models"][weights]
        self.name, self.case = name, PeerCase(tool, weights, mode, common["batch"])
        self.worker = Worker(entry, self.case)
        self.spec = {
            **common, **self.case._asdict(), "k": int(k) if k else None, "options": entry["options"],
            "own": given,
            "model": models["model"], "draft": models["draft"] if mode in DRAFT_MODES else None,
        }  # fmt: skip

    def load(self) -> dict[str, str]:
        return dict(self.worker.ask({"load": self.spec}, "ready")["ready"])

    def ask(self, label: str, prompts: Sequence[list[int]], tokens: int) -> Answered:
        answer = self.worker.ask({"generate": {"prompts": prompts, "max_tokens": tokens}}, *WORKER_FIELDS)
        return Answered(self.name, label, answer["seconds"], sum(map(len, answer["ids"])), answer["ids"])


def summary(found: Iterable[Answered]) -> list[str]:
    """Tokens/s of each case over the prompts that all of them answered, range by prompt, equal answers; then ratios."""
    table: dict[str, dict[str, list[Answered]]] = {}
    for one in found:
        if one.tokens:  # an empty answer has no speed
            table.setdefault(one.case, {}).setdefault(one.prompt, []).append(one)
    prompts = sorted(set.intersection(*({*by} for by in table.values()))) if table else []
    if not prompts:
        return ["No prompt was answered by all cases."]
    pace = {
        case: {p: median(each.seconds / each.tokens for each in by[p]) for p in prompts} for case, by in table.items()
    }
    plain = table.get(f"{OWN_TOOL}:{PLAIN_MODE}", {})
    lines = [f"{len(prompts)} prompts answered by all: " + ", ".join(prompts)]
    for case, by in table.items():
        tokens = {p: by[p][0].tokens for p in prompts}
        speed = sum(tokens.values()) / sum(tokens[p] * pace[case][p] for p in prompts)
        each = [1 / pace[case][p] for p in prompts]
        same = f"{sum(by[p][0].ids == plain[p][0].ids for p in prompts)} as plain" if plain else ""
        first = median(by[p][0].seconds for p in prompts)
        lines.append(f"{case:64} {speed:7.2f} tokens/s ({min(each):.2f}-{max(each):.2f}), median {first:.2f} s, {same}")
    for kind in (True, False):
        own, other = (
            [c for c in table if (c.split(":")[1] == PLAIN_MODE) == kind and c.startswith(OWN_TOOL) == mine]
            for mine in (True, False)
        )
        for a in own:
            for b in other:
                ratios = [pace[b][p] / pace[a][p] for p in prompts]
                lines.append(f"{a} over {b}: median {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    return lines


def labelled(args: argparse.Namespace, text: Text) -> list[tuple[str, list[list[int]]]]:
    """Groups of as many prompts as the batch, each with a name: sets in turns."""
    sets = [(path.stem, [encode(text, each) for each in read_prompts(path, args.each)]) for path in args.prompts]
    if args.cut:
        ids = [token for _, prompts in sets for prompt in prompts for token in prompt]
        ids *= 1 + (args.cut + args.each * CUT_STEP) // len(ids)
        sets = [("cut", [ids[i * CUT_STEP :][: args.cut] for i in range(args.each)])]
    size = args.batch
    most = max(len(prompts) for _, prompts in sets)
    return [
        (f"{name} {i // size + 1}", prompts[i : i + size])
        for i in range(0, most, size)
        for name, prompts in sets
        if len(prompts) >= i + size
    ]


def kept(path: Path | None) -> list[Answered]:
    if path is None or not path.exists():
        return []
    return [Answered(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def held(window: float | None) -> float:
    """The time at which to hold again."""
    if window is None:
        return float("inf")
    print("Holding: a line on standard input starts the next window.", flush=True)
    sys.stdin.readline()
    return perf_counter() + window


def timed(
    sides: Sequence[Side], groups: Sequence[tuple[str, list[list[int]]]], tokens: int, window: float | None
) -> Iterator[Answered]:
    """Every group through every case, every other one in reverse order of the cases."""
    until = held(window)
    for number, (label, prompts) in enumerate(groups):
        for side in [*sides] if number % 2 == 0 else [*reversed(sides)]:
            if perf_counter() > until:
                until = held(window)
            try:
                yield side.ask(label, prompts, tokens)
            except PeerError as error:
                sides = [other for other in sides if other is not side]
                print(error, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--prompts", type=lambda s: [Path(p) for p in s.split(",")], required=True)
    parser.add_argument("--weights", default="4-bit")
    for name, default in {"each": 6, "tokens": 32, "batch": 1, "threads": 2, "cut": 0, "repeat": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hold", type=float)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    setup = read(PeerWish(args.root, args.prompts[0]))
    entries, notes = ready(args.root, setup)
    text = Text(Path(setup["model"]))
    groups = labelled(args, text)
    if not groups:
        raise SystemExit(f"No file has a batch of {args.batch} prompts; --each is {args.each}.")
    longest = max(len(prompt) for _, prompts in groups for prompt in prompts)
    common = {
        "threads": args.threads,
        "batch": args.batch,
        "max_len": longest + args.tokens,
        "eos": sorted({*text.eos()}),
    }
    for note in notes:
        print(note)
    with ExitStack() as stack:
        sides = []
        for name in args.cases:
            side = Side(name, entries, args.weights, common)
            stack.enter_context(side.worker)
            try:
                versions = side.load()
                side.ask("", [prompt[:WARM_UP_PROMPT] for prompt in groups[0][1]], WARM_UP_TOKENS)
            except PeerError as error:
                print(error, flush=True)
                continue
            print(f"{name}: {versions}", flush=True)
            sides.append(side)
        found = kept(args.record)
        for one in timed(sides, groups * args.repeat, args.tokens, args.hold):
            found.append(one)
            if args.record:
                with args.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one._asdict()) + "\n")
        print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
