"""Lossy verifiers beside the exact one, on questions that a program judges: tokens a pass, and what is right.

    python bench/studies/judging.py DATA BASE DRAFT --task gsm8k --out judging.jsonl [--questions 200] [--minutes 4]

Rows: `exact`, `typical`, `top K` (the target's K most probable tokens stand; no training), `ratio R` (tokens stand
whose probability is at least R of the greatest; no training), and `judge T` at threshold T where DRAFT was made by
`paceline train judge`. Drafts are chains of `--nodes` tokens. Accuracy has its 95 % interval,
`less exact` is the mean difference on the same questions; accepted are tokens of a chain that stand, tau those of a
pass with the target's own. Nothing is timed, so a busy machine changes no figure; answers in --out are not asked again,
and an --out of other models, questions or options is refused.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))
from judged import MOST_TOKENS, TASKS, Record, difference, digest, share, task_settings, within

from paceline import LLM, SamplingParams
from paceline.draft.correctness import Correctness
from paceline.model.checkpoint import read_config

ROWS = "exact,typical,top 2,top 3,top 5,ratio 0.3,ratio 0.1,judge 0.9,judge 0.7,judge 0.5,judge 0.3"
BATCH = 20
"""Questions asked at once."""


def with_head(base: Path, draft: Path, room: Path) -> tuple[Path, bool]:
    """The draft's directory, or one beside it with a head that nobody trained; was it trained?"""
    if (draft / "judge").is_dir():
        return draft, True
    for file in draft.iterdir():
        (room / file.name).symlink_to(file.resolve())
    Correctness(read_config(base).hidden).save(room)
    return room, False


def set_rule(head: Correctness, row: str) -> str:
    """Prepare a row; the verifier that it needs."""
    kind, _, value = row.partition(" ")
    if kind == "top":
        head.rule, head.top_k = "top_k", int(value)
    elif kind == "ratio":
        head.rule, head.ratio = "ratio", float(value)
    elif kind == "judge":
        head.rule, head.threshold = "head", float(value)
    return "judge" if value else kind


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--task", choices=list(TASKS), default="gsm8k")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH, help="questions asked at once")
    parser.add_argument("--minutes", type=float, default=600, help="begin nothing new after these")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--quantize")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    until, every = time.monotonic() + args.minutes * 60, TASKS[args.task](args.data)
    questions = every[args.skip :][: args.questions]
    settings = {"base": digest(args.base), "draft": digest(args.draft), "quantize": args.quantize, "nodes": args.nodes}
    record = Record(args.out, {**settings, **task_settings(args.task, every)})
    with tempfile.TemporaryDirectory() as room:
        draft, trained = with_head(args.base, args.draft, Path(room))
        rows = [row for row in args.rows.split(",") if trained or not row.startswith("judge")]
        if any(record.left(f"{args.task} {row}", questions) for row in rows):
            options: dict[str, Any] = {"length": "fixed", "quantize": args.quantize, "max_requests": args.batch}
            with LLM(args.base, draft, drafter="model", **options) as llm:
                for start in range(0, len(questions), args.batch):
                    for row in rows:
                        left = record.left(f"{args.task} {row}", questions[start : start + args.batch])
                        if left and time.monotonic() < until:
                            answer(llm, row, left, record, args)
    show(record, rows, [question.id for question in questions], args)


def answer(llm: LLM, row: str, questions: Any, record: Record, args: argparse.Namespace) -> None:
    verifier = set_rule(cast(Correctness, llm.engine.components["judge"]), row)
    wish = SamplingParams(temperature=0, seed=0, max_tokens=MOST_TOKENS[args.task], max_nodes=args.nodes,
                          verifier=verifier)  # fmt: skip
    for question, made in zip(questions, llm.chat([each.messages for each in questions], wish, progress=False)):
        stats = made.stats
        record.add(f"{args.task} {row}", question.id, right=question.right(made.text), tokens=len(made.token_ids),
                   passes=stats.passes, kept=sum(stats.kept), text=made.text)  # fmt: skip
    print(f"{row}: {len(questions)}", file=sys.stderr, flush=True)


def show(record: Record, rows: list[str], ids: list[str], args: argparse.Namespace) -> None:
    known = {row: made for row in rows if (made := record.row(f"{args.task} {row}"))}
    common = [each for each in ids if all(each in row for row in known.values())]
    print(f"{args.task}, {len(common)} questions, chains of {args.nodes}")
    print("row         right [95 %]           less exact       tau  accepted a chain  same text")
    for name, row in known.items():
        mine = [row[each] for each in common]
        exact = [known["exact"][each] for each in common] if "exact" in known else mine
        right = [each["right"] for each in mine]
        mean, half = difference(right, [each["right"] for each in exact])
        less = f"{mean:+.3f} {within(half)}"
        passes = max(1, sum(each["passes"] for each in mine))
        same = sum(a["text"] == b["text"] for a, b in zip(mine, exact))
        tau, kept = (sum(each[what] for each in mine) / passes for what in ("tokens", "kept"))
        print(f"{name:10}  {share(sum(right), len(mine)):22} {less}  {tau:6.2f} {kept:12.2f} {same:13}")


if __name__ == "__main__":
    main()
