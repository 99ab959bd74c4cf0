"""All studies above tokens as one job in the background, and the one table of what they found.

    nice -n 19 setsid python bench/studies/above.py OUT DATA BASE SMALL [--only gap,steps] > OUT/log 2>&1 &
    python bench/studies/above.py OUT DATA BASE SMALL --table

The first runs each study in turn, with one thread (`--threads`), as a process of its own. A study writes a line of JSON
into OUT for each question and asks none that is there: the job may be stopped, or killed, at any time, and the same
command goes on. OUT holds the models and options, too, and is refused with others. The second prints a row for each
paper, from what is in OUT by then: claim, found, interval, baseline, number of questions. BASE and SMALL are two models
with one tokenizer, DATA is as judged.py has it.

The first questions choose the threshold of SpecReason; others test it, and seconds are those of the others.

| study | what it does | needs |
|---|---|---|
| `gap` | both models alone on five tasks | |
| `steps` | SpecReason at several thresholds, its batch sharing what rows have in common | |
| `times` | the same, one question at a time: seconds and processor time | |
| `cues` | Speculative Thinking on solved examples that doubt | |
| `head`, `judge` | Judge Decoding: a head from automatic labels; then it beside rules without training | |
| `parallel` | Multiverse: 20 texts beside sequential ones, branches after the outline and while it is written | |
| `retrieval` | RaLMSpec with every retriever of an index | `--index`, `--writer` |
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import retrieval
from judged import ERROR_95, GAP_TASKS, SHOTS, TASKS, NoData, Record, difference, digest, find, lines, share, within
from reasoning import SPEC, TIMED, chosen

STUDIES = Path(__file__).parent
NAMES = ("gap", "steps", "times", "cues", "head", "judge", "parallel", "retrieval")
STEP_ROWS = "small,base,odds 0,tau 5,tau 7,tau 8,tau 8.5,odds 7,odds 8.5,odds 8.9"
CUE_ROWS = "small,base,mentor cues,mentor"
CALIBRATION = 40
"""Questions on which a threshold is chosen; the others test it."""
LABELLED = 64
"""Most questions whose answers label tokens."""
TRAINED_ON, SETTINGS_FILE = "train.jsonl", "settings.jsonl"
JUDGED, RULES = "judge.jsonl", "rules.jsonl"
"""Records of Judge Decoding with a head, and of the rules without training where there is none."""
LEAST_GAP = 30
"""Questions of a task before the job believes its gap."""
Found = tuple[str, str, str, int]
"""Paper, what was found, baseline, questions."""
CLAIMS = {
    "a pair with a gap": ("", "weights of 4 bits, greedy, few tokens"),
    "SpecReason": ("1.4 to 3.0 times as fast at equal accuracy", "models of 1.5B and 0.5B, not 32B and 1.5B, that were "
                   "not trained to reason; the threshold is chosen on other questions"),
    "Speculative Thinking": ("6 points more", "the cues come from the solved examples: models for code write none"),
    "Judge Decoding": ("about 3 times the accepted length at equal accuracy", "labels by swaps, not by people"),
    "Multiverse": ("up to 2 times as fast", "the model was prompted, not trained"),
    "RaLMSpec": ("1.75 to 2.39 times as fast, exact dense retrieval", "a smaller knowledge base, on one core"),
}  # fmt: skip
"""Of each paper: what it claims, and what differs here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One process: words behind the interpreter. `made`: what is there once it is done; None: it knows itself."""

    name: str
    words: list[str]
    made: Path | None = None


def jobs(args: argparse.Namespace, task: str) -> list[Job]:
    """All that are asked for, in their order."""
    data, base, small, out = str(args.data), str(args.base), str(args.small), args.out
    many = ["--questions", str(args.questions), "--batch", str(args.batch), "--minutes", str(args.minutes)]
    limit = ["--limit", str(args.texts), "--minutes", str(args.minutes)]
    context = [] if args.context is None else ["--context", str(args.context)]
    pair = [script("reasoning"), data, base, small]
    heads, training = out / "head", out / TRAINED_ON
    drafting = heads if (heads / "judge").is_dir() else args.head_small or small
    found = [
        Job("gap", [script("judged"), data, "gap", "--models", f"small={small}", f"base={base}", "--out",
                    str(out / "gap.jsonl"), *many, "--questions", str(args.gap_questions), "--tasks", args.tasks,
                    *context]),
        Job("steps", [*pair, "--task", task, "--rows", args.step_rows, "--out", str(out / "steps.jsonl"), *many]),
        Job("times", [*pair, "--task", task, "--rows", args.time_rows, "--timed", "--draft", small, "--out",
                      str(out / "times.jsonl"), *many, "--questions", str(args.timed_questions), "--skip",
                      str(CALIBRATION)]),
        Job("cues", [*pair, "--task", "doubts", "--rows", CUE_ROWS, "--out", str(out / "cues.jsonl"), *many]),
        Job("head", ["-m", "paceline", "train", "judge", "--target", args.head_base or base, "--data", str(training),
                     "--set", f"draft={args.head_small or small}", "--out", str(heads), *args.train.split()],
            heads / "judge"),
        Job("judge", [script("judging"), data, base, str(drafting), "--task", task, "--out",
                      str(out / (JUDGED if drafting == heads else RULES)), *many]),
    ]  # fmt: skip
    for way in ([], ["--early"]):
        texts = [script("parallel"), base, "--tokens", str(args.tokens), *way, *limit, *context]
        found += [
            Job("parallel", [*texts, "--quality", base, "--out", str(out / "texts.jsonl")]),
            Job("parallel", [*texts, "--timed", "--fan-out", "8", "--out", str(out / "branches.jsonl")]),
        ]
    if args.index is not None:
        words = [script("retrieval"), "--index", str(args.index), "--out", str(out / "retrieval.jsonl"), *limit]
        found.append(Job("retrieval", [*words, *(["--model", str(args.writer)] if args.writer else [])]))
    return [job for job in found if job.name in args.only.split(",")]


def script(name: str) -> str:
    return str(STUDIES / f"{name}.py")


def task_of(args: argparse.Namespace) -> str:
    """The task that is given, else that with the widest gap so far, else gsm8k."""
    if args.task:
        return str(args.task)
    gaps = [(each[0], task) for task in GAP_TASKS if (each := gap(args.out, task)) and each[2] >= LEAST_GAP]
    return max(gaps)[1] if gaps else "gsm8k"


def gap(out: Path, task: str) -> tuple[float, float, int] | None:
    """Right answers of the base model less the small one's, half of the interval, and the number of questions."""
    record = Record(out / "gap.jsonl")
    base, small = (record.row(f"{task} {name}") for name in ("base", "small"))
    both = [each for each in base if each in small]
    return (*difference(rights(base, both), rights(small, both)), len(both)) if both else None


def settings(args: argparse.Namespace) -> Record:
    """What OUT was made with. SystemExit if that is not what is given now, or not known."""
    names = ("base", "small", "head_base", "head_small", "writer", "index")
    made_of = {name: digest(path) for name in names if (path := getattr(args, name)) is not None}
    options = {name: getattr(args, name) for name in ("tokens", "context", "train")}
    made = Record(args.out / SETTINGS_FILE, {**made_of, **options})
    others = [file.name for file in args.out.glob("*.jsonl") if file.name not in (TRAINED_ON, SETTINGS_FILE)]
    if others and not made.path.is_file():
        raise SystemExit(f"{args.out} holds {min(others)} and does not say of which models; give another OUT, or, if "
                         f'it is of these, put the line {{"settings": {{}}}} into {made.path}.')  # fmt: skip
    return made


def run(args: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))  # its study ends, too
    args.out.mkdir(parents=True, exist_ok=True)
    settings(args).settle()
    for name in args.only.split(","):
        task = task_of(args)
        for job in jobs(args, task):
            if job.name != name or (job.made is not None and job.made.exists()):
                continue
            if name == "head":
                try:
                    questions(args.data, args.out / TRAINED_ON)
                except NoData as error:
                    print(f"== {name} failed: {error}; the next one begins", flush=True)
                    continue
            print(f"== {name}: {' '.join(job.words)}", flush=True)
            if failed := process(job.words):
                print(f"== {name} failed with {failed}; the next one begins", flush=True)
    show(args)


def process(words: Sequence[str]) -> int:
    """Run one to its end: its exit code."""
    return subprocess.run([sys.executable, *words], check=False).returncode


def questions(data: Path, to: Path) -> None:
    """Questions whose answers label tokens, none of which a study asks, in the form of gsm8k."""
    shots = TASKS["gsm8k"](data)[0].messages[:-1]
    asked = [each["question"] for each in lines(find(data, "gsm8k_train.jsonl"))[SHOTS:][:LABELLED]]
    chats = [{"messages": [*shots, {"role": "user", "content": each}]} for each in asked]
    to.write_text("".join(json.dumps(each) + "\n" for each in chats), encoding="utf-8")


# -- the table -------------------------------------------------------------------------------------------------------


def rights(row: dict[str, dict[str, Any]], ids: Sequence[str]) -> list[bool]:
    return [row[each]["right"] for each in ids]


def said(right: Sequence[bool]) -> str:
    return share(sum(right), len(right))


def less(one: Sequence[bool], other: Sequence[bool]) -> str:
    mean, half = difference(one, other)
    return f"{mean:+.3f} {within(half)}"


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Of sums, with its 95 % interval over questions (linear); one question has none."""
    value, of = sum(above) / max(1e-9, sum(below)), len(above)
    if of < 2:
        return f"{value:.2f} {within(nan)}"
    rest = [a - value * b for a, b in zip(above, below)]
    spread = sqrt(sum(each**2 for each in rest) / (of - 1) / of) * of / max(1e-9, sum(below))
    return f"{value:.2f} {within(ERROR_95 * spread, 2)}"


def pair_rows(args: argparse.Namespace) -> list[Found]:
    made = list[Found]()
    record = Record(args.out / "gap.jsonl")
    for task in TASKS:
        if known := gap(args.out, task):
            base, small = (record.row(f"{task} {name}") for name in ("base", "small"))
            both = [each for each in base if each in small]
            made.append(("a pair with a gap", f"{task}: gap {known[0]:.3f} {within(known[1])}; base "
                         f"{said(rights(base, both))}", f"small {said(rights(small, both))}", len(both)))  # fmt: skip
    return made


def step_rows(args: argparse.Namespace, task: str) -> list[Found]:
    record, times = Record(args.out / "steps.jsonl"), Record(args.out / "times.jsonl")
    try:
        ids = [each.id for each in TASKS[task](args.data)[: args.questions]]
    except NoData:
        return []
    name, _ = chosen(record, task, args.step_rows.split(","), ids[:CALIBRATION])
    base = record.row(f"{task} base")
    mine = record.row(f"{task} {name}") if name else {}
    test = [each for each in ids[CALIBRATION:] if each in base and each in mine]
    if not base:
        return []
    if not test:
        return [("SpecReason", f"{task}: no threshold is calibrated and "
                 "tested yet", f"base {said(rights(base, list(base)))}", len(base))]  # fmt: skip
    facts = f"{task}, {name}: {said(rights(mine, test))}, {less(rights(mine, test), rights(base, test))} of base; "
    facts += (
        f"base's passes {ratio(*([each['passes']['base'] for each in (row[i] for i in test)] for row in (mine, base)))}"
    )
    alone, later = times.row(f"{task} base{TIMED}"), set(ids[CALIBRATION:])
    for row in (name, f"{name}{SPEC}"):
        mine = times.row(f"{task} {row}{TIMED}")
        both = [each for each in mine if each in alone and each in later]
        if both:
            cpu = ([it[i]["cpu"] for i in both] for it in (alone, mine))
            facts += f"; {row} {ratio(*cpu)} times as fast by processor time on {len(both)}"
        elif row == name:
            facts += f"; {row} was not timed"
    return [("SpecReason", facts,
             f"base {said(rights(base, test))}", len(test))]  # fmt: skip


def cue_rows(args: argparse.Namespace) -> list[Found]:
    record = Record(args.out / "cues.jsonl")
    rows = {name: record.row(f"doubts {name}") for name in CUE_ROWS.split(",")}
    ids = [each for each in rows["mentor cues"] if each in rows["small"] and each in rows["base"]]
    if not ids:
        return []
    mine, small, base = (rights(rows[name], ids) for name in ("mentor cues", "small", "base"))
    part = sum(rows["mentor cues"][i]["mentor"] for i in ids) / sum(rows["mentor cues"][i]["tokens"] for i in ids)
    return [("Speculative Thinking", f"{said(mine)}, {less(mine, small)} of small; the mentor wrote "
             f"{part:.2f} of the tokens", f"small {said(small)}, base {said(base)}", len(ids))]  # fmt: skip


def judge_rows(args: argparse.Namespace) -> list[Found]:
    found = Record(args.out / JUDGED)
    record, made = found if found.all else Record(args.out / RULES), list[Found]()
    for name in dict.fromkeys(each["row"] for each in record.all):
        task, _, way = name.partition(" ")
        row, exact = record.row(name), record.row(f"{task} exact")
        ids = [each for each in row if each in exact]
        if way and way != "exact" and ids:
            long = [[it[i]["tokens"] / it[i]["passes"] for i in ids] for it in (row, exact)]
            made.append(("Judge Decoding",
                         f"{task}, {way}: {said(rights(row, ids))}, "
                         f"{less(rights(row, ids), rights(exact, ids))} of exact; "
                         f"tokens a pass {ratio(*long)} times", f"exact {said(rights(exact, ids))}",
                         len(ids)))  # fmt: skip
    return made


def branch_rows(args: argparse.Namespace) -> list[Found]:
    record, made = Record(args.out / "branches.jsonl"), list[Found]()
    for name in ("parallel", "early"):
        row = list(record.row(f"{name} timed").values())
        if row:
            tokens, passes = ([each[what] for each in row] for what in ("tokens", "passes"))
            gains = ratio([each["cpu_alone"] for each in row], [each["cpu"] for each in row])
            made.append(("Multiverse", f"{name}: {ratio(tokens, passes)} tokens a pass, {gains} "
                         "times as fast by processor time", "in sequence: 1", len(row)))  # fmt: skip
    return made


def retrieval_rows(args: argparse.Namespace) -> list[Found]:
    record, made = Record(args.out / "retrieval.jsonl"), list[Found]()
    for name in list(dict.fromkeys(each["row"] for each in record.all)):
        kind, _, way = name.partition(" ")
        one, row = record.row(f"{kind} one"), record.row(name)
        ids = [each for each in row if each in one]
        if way != "one" and way in retrieval.WAYS and ids:
            times = ([it[each]["seconds"] for each in ids] for it in (one, row))
            right, asked = (sum(row[each]["report"][what] for each in ids) for what in ("accepted", "proposed"))
            made.append(("RaLMSpec", f"{kind}, {way}: "
                         f"{ratio(*times)} times as fast, {right} of {asked} guesses right", "one retrieval at a time",
                         len(ids)))  # fmt: skip
    return made


def show(args: argparse.Namespace) -> None:
    task = task_of(args)
    print("| paper | its claim | found here [95 %] | baseline | questions | what differs |\n|---|---|---|---|---|---|")
    rows = [*pair_rows(args), *step_rows(args, task), *cue_rows(args), *judge_rows(args), *branch_rows(args)]
    for paper, facts, baseline, number in [*rows, *retrieval_rows(args)]:
        claim, differs = CLAIMS[paper]
        print(f"| {paper} | {claim} | {facts} | {baseline} | {number} | {differs} |")


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("base")
    parser.add_argument("small")
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--task", choices=list(TASKS), help="of steps, times and judge; default: the widest gap")
    parser.add_argument("--tasks", default=",".join(GAP_TASKS), help="of gap")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--gap-questions", type=int, default=100)
    parser.add_argument("--timed-questions", type=int, default=40, help="behind those that choose the threshold")
    parser.add_argument("--texts", type=int, default=20, help="of parallel and retrieval")
    parser.add_argument("--tokens", type=int, default=500, help="of a text of parallel")
    parser.add_argument("--context", type=int, help="most tokens of prompt and answer; default: each study's own")
    parser.add_argument("--batch", type=int, default=8, help="questions asked at once")
    parser.add_argument("--minutes", type=float, default=600, help="of each study: begin nothing new after these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-rows", default=STEP_ROWS)
    parser.add_argument("--time-rows", default="small,base,tau 7,tau 8,tau 7 spec")
    parser.add_argument("--train", default="--minutes 30 --prompts 64", help="more words of `paceline train judge`")
    parser.add_argument("--head-base", help="folder of BASE's weights to train on, if BASE is a file")
    parser.add_argument("--head-small", help="folder of SMALL's weights")
    parser.add_argument("--index", type=Path)
    parser.add_argument("--writer", type=Path)
    args = parser.parse_args(words)
    for name in args.only.split(","):
        if name not in NAMES:
            parser.error(f"--only {name} is none of {', '.join(NAMES)}")
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    if args.table:
        settings(args)
        show(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
