"""Questions whose answers a program judges: by a number, by a boxed expression, or by running tests in a sandbox.

    python bench/studies/judged.py DATA gap --models small=M0 base=M1 --out gap.jsonl [--tasks svamp,mbpp]

asks every model each question of each task, in batches, and prints who is right how often: the gap between two models
is what a study of "accuracy kept" needs. It can be stopped at any time (`--minutes`): what is in `--out` is not asked
again.

DATA is a folder with svamp.json, math500.jsonl, mbpp_sanitized.jsonl, gsm8k_train.jsonl and gsm8k_test.jsonl,
humaneval.jsonl, of which a task needs its own. Other studies take their questions, intervals and record from here.
"""

import argparse
import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
TEST_SECONDS = 6.0
SHOTS = 3
"""Solved examples before a question of gsm8k."""
BATCH = 48
"""Questions asked at once."""
ERROR_95 = 1.96
"""Standard errors on either side of a 95 % interval."""


@dataclass(frozen=True)
class Question:
    id: str
    messages: list[dict[str, str]]
    right: Callable[[str], bool]
    """Does this text answer it?"""
    separator: str = "\n\n"
    """What stands between two steps of an answer in the form that is asked for."""


# -- tasks -----------------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def find(data: Path, name: str) -> Path:
    """A file of this name anywhere below the folder."""
    found = sorted(data.rglob(name))
    if not found:
        raise SystemExit(f"{data} has no {name} in it.")
    return found[0]


def same_number(text: str, answer: float, mark: str) -> bool:
    """Is the first number behind the last `mark`, or without one the last number, the answer?"""
    tail = text.rsplit(mark, 1)[1] if mark in text else text
    found = NUMBER.findall(tail)
    if not found:
        return False
    said = (found[0] if mark in text else found[-1]).replace(",", "")
    return abs(float(said) - answer) < 1e-4


def svamp(data: Path) -> list[Question]:
    ask = (
        "{Body}. {Question} Reason step by step, with a blank line between two steps, and end with a line that says "
        "'The answer is N.' with the number N."
    )
    return [
        Question(each["ID"], [{"role": "user", "content": ask.format(**each)}],
                 lambda text, n=float(each["Answer"]): same_number(text, n, "answer is"))
        for each in json.loads(find(data, "svamp.json").read_text(encoding="utf-8"))
    ]  # fmt: skip


def gsm8k(data: Path) -> list[Question]:
    """In the form of its own solutions: a line for each step, and #### before the number."""

    def solution(each: Mapping[str, str]) -> str:
        return re.sub(r"<<.*?>>", "", each["answer"])

    shots = [
        message
        for each in lines(find(data, "gsm8k_train.jsonl"))[:SHOTS]
        for message in (
            {"role": "user", "content": each["question"]}, {"role": "assistant", "content": solution(each)},
        )
    ]  # fmt: skip

    def question(number: int, each: Mapping[str, str]) -> Question:
        answer = float(each["answer"].rsplit("####", 1)[1].replace(",", ""))
        messages = [*shots, {"role": "user", "content": each["question"]}]
        return Question(f"gsm8k-{number}", messages, lambda text: same_number(text, answer, "####"), "\n")

    return [question(i, each) for i, each in enumerate(lines(find(data, "gsm8k_test.jsonl")))]


def boxed(text: str) -> str | None:
    """What stands in the last box; None: there is none."""
    at = text.rfind("\\boxed{")
    if at < 0:
        return None
    depth, start = 0, at + len("\\boxed")
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start + 1 : i]
    return None


def tidy(expression: str) -> str:
    """An expression without what does not change its value."""
    made = expression.strip().strip("$").rstrip(".")
    for old in ("\\left", "\\right", "\\!", "\\,", "\\ ", "\\%", "%", "^\\circ", "^{\\circ}", "\\$"):
        made = made.replace(old, "")
    made = made.replace("dfrac", "frac").replace("tfrac", "frac")
    made = re.sub(r"\\(?:text|mbox|mathrm)\{([^{}]*)\}", r"\1", made)
    made = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", made)
    made = re.sub(r"(?<=\d),(?=\d{3}\b)", "", made)
    return re.sub(r"\s+", "", made)


def math_easy(data: Path) -> list[Question]:
    """Levels 1 and 2 of MATH-500; exact match of the boxed expression."""
    ask = (
        "{problem}\n\nReason step by step, with a blank line between two steps, and put your final answer in "
        "\\boxed{{}}."
    )

    def right(text: str, answer: str) -> bool:
        said = boxed(text)
        return said is not None and tidy(said) == tidy(answer)

    easy = [each for each in lines(find(data, "math500.jsonl")) if each["level"] <= 2]
    return [
        Question(f"math-{i}", [{"role": "user", "content": ask.format(**each)}],
                 lambda text, answer=each["answer"]: right(text, answer))
        for i, each in enumerate(easy)
    ]  # fmt: skip


def program(text: str) -> str:
    """The code of an answer: its first fenced block, else all of it."""
    found = CODE.search(text)
    return found.group(1) if found else text


def passes(source: str) -> bool:
    """Does this program end without an error, in a sandbox?"""
    from paceline.apps.common.sandbox import AppLimits, Job, run

    job = Job(("python3", "main.py"), {"main.py": source}, limits=AppLimits(wall_s=TEST_SECONDS))
    return asyncio.run(run(job)).status == "ok"


def humaneval(data: Path) -> list[Question]:
    ask = (
        "Complete this function. Answer with the whole function in one block of Python code.\n\n```python\n{prompt}```"
    )
    return [
        Question(each["task_id"], [{"role": "user", "content": ask.format(**each)}],
                 lambda text, it=each: passes(
                     it["prompt"].split("def ")[0] + program(text) + f"\n{it['test']}\ncheck({it['entry_point']})\n"))
        for each in lines(find(data, "humaneval.jsonl"))
    ]  # fmt: skip


def mbpp(data: Path) -> list[Question]:
    ask = "{prompt} It must pass this test: `{test}`. Answer with one block of Python code."
    return [
        Question(f"mbpp-{i}", [{"role": "user", "content": ask.format(prompt=it["prompt"], test=it["test_list"][0])}],
                 lambda text, it=it: passes("\n".join([*it["test_imports"], program(text), *it["test_list"]])))
        for i, it in enumerate(lines(find(data, "mbpp_sanitized.jsonl")))
    ]  # fmt: skip


TASKS: dict[str, Callable[[Path], list[Question]]] = {
    "svamp": svamp, "gsm8k": gsm8k, "math": math_easy, "humaneval": humaneval, "mbpp": mbpp,
}  # fmt: skip
MOST_TOKENS = {"svamp": 160, "gsm8k": 160, "math": 300, "humaneval": 240, "mbpp": 180}

# -- figures ---------------------------------------------------------------------------------------------------------


def interval(right: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson)."""
    if not of:
        return 0.0, 1.0
    p, z = right / of, ERROR_95
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def share(right: int, of: int) -> str:
    low, high = interval(right, of)
    return f"{right / max(1, of):.3f} [{low:.3f}, {high:.3f}]"


def difference(one: Sequence[bool], other: Sequence[bool]) -> tuple[float, float]:
    """Mean of one - other over the same questions, and half of its 95 % interval."""
    each = [float(a) - float(b) for a, b in zip(one, other, strict=True)]
    mean = sum(each) / max(1, len(each))
    spread = math.sqrt(sum((x - mean) ** 2 for x in each) / max(1, len(each) - 1))
    return mean, ERROR_95 * spread / math.sqrt(max(1, len(each)))


class Record:
    """Lines of JSON in a file, one for each (row, question); what is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[dict[str, Any]] = lines(path) if path.is_file() else []
        self.known = {(each["row"], each["id"]) for each in self.all}

    def add(self, row: str, question: str, **facts: Any) -> None:
        made = {"row": row, "id": question, **facts}
        self.all.append(made)
        self.known.add((row, question))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")

    def row(self, name: str) -> dict[str, dict[str, Any]]:
        """{question: its facts}"""
        return {each["id"]: each for each in self.all if each["row"] == name}

    def left(self, row: str, questions: Iterable[Question]) -> list[Question]:
        return [each for each in questions if (row, each.id) not in self.known]


# -- the gap ---------------------------------------------------------------------------------------------------------


def gap(args: argparse.Namespace) -> None:
    from paceline import LLM, SamplingParams

    record, until = Record(args.out), time.monotonic() + args.minutes * 60
    tasks = {name: TASKS[name](args.data)[args.skip :][: args.questions] for name in args.tasks.split(",")}
    names = dict(each.split("=", 1) for each in args.models)
    for name, path in names.items():
        todo = [(task, q) for task, mine in tasks.items() for q in record.left(f"{task} {name}", mine)]
        if not todo or time.monotonic() > until:
            continue
        with LLM(path, drafter=args.drafter, quantize=args.quantize, max_requests=BATCH, max_model_len=2048) as llm:
            while todo and time.monotonic() < until:
                now, todo = todo[:BATCH], todo[BATCH:]
                begun = time.monotonic()
                wishes = [SamplingParams(temperature=0, max_tokens=MOST_TOKENS[task]) for task, _ in now]
                answers = llm.chat([q.messages for _, q in now], wishes, progress=False)
                seconds = (time.monotonic() - begun) / len(now)
                for (task, q), answer in zip(now, answers):
                    record.add(f"{task} {name}", q.id, right=q.right(answer.text), tokens=len(answer.token_ids),
                               seconds=round(seconds, 3), text=answer.text)  # fmt: skip
                print(f"{name} {now[-1][0]}: {len(todo)} left, {seconds:.1f} s each", flush=True)
    print("task       model     questions  right [95 %]            tokens  s each in a batch")
    for task in tasks:
        for name in names:
            mine = list(record.row(f"{task} {name}").values())
            if mine:
                print(f"{task:10} {name:9} {len(mine):9}  {share(sum(x['right'] for x in mine), len(mine)):22}"
                      f" {sum(x['tokens'] for x in mine) / len(mine):7.0f} "
                      f"{sum(x['seconds'] for x in mine) / len(mine):7.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("what", choices=["gap"])
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=PATH")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="begin no batch after these")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--quantize", help="as of the command line; a checkpoint in 4 bits keeps them without")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines; answers that are there are not asked again"
    )
    gap(parser.parse_args())


if __name__ == "__main__":
    main()
