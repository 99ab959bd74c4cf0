"""Questions whose answers a program judges: by a number, by a boxed expression, or by running tests in a sandbox.

    python bench/studies/judged.py DATA gap --models small=M0 base=M1 --out gap.jsonl [--tasks svamp,mbpp]

asks every model each question of each task, in batches, and prints who is right how often: the gap between two models
is what a study of "accuracy kept" needs. It can be stopped at any time (`--minutes`): what is in `--out` is not asked
again. Models, questions and options stand in `--out`, too, and others are refused.

DATA is a folder with svamp.json, math500.jsonl, mbpp_sanitized.jsonl, gsm8k_train.jsonl and gsm8k_test.jsonl,
humaneval.jsonl, of which a task needs its own. Other studies take their questions, intervals and record from here.
"""

import argparse
import asyncio
import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
STEP_SUM = re.compile(r"<<([^=<>]+)=([^<>]+)>>")
"""A sum in a solution of gsm8k."""
DOUBT = "Wait, let me check that step again. Yes, it is right."
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


class NoData(SystemExit):
    """A file of questions that is not there."""


def find(data: Path, name: str) -> Path:
    """A file of this name anywhere below the folder."""
    found = sorted(data.rglob(name))
    if not found:
        raise NoData(f"{data} has no {name} in it.")
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


def gsm8k(data: Path, doubts: bool = False) -> list[Question]:
    """In the form of its own solutions: a line for each step, and #### before the number. `doubts`: the solved examples
    write a paragraph for each step, and behind the first one a paragraph that doubts and checks it."""

    def solution(each: Mapping[str, str]) -> str:
        plain = re.sub(r"<<.*?>>", "", each["answer"])
        if not doubts:
            return plain
        steps, sums = plain.split("\n"), STEP_SUM.findall(each["answer"])
        check = f"Wait, let me check that: {sums[0][0]} is {sums[0][1]}. Yes, that is right." if sums else DOUBT
        return "\n\n".join([steps[0], check, *steps[1:]])

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
        separator = "\n\n" if doubts else "\n"
        return Question(f"gsm8k-{number}", messages, lambda text: same_number(text, answer, "####"), separator)

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
    "doubts": partial(gsm8k, doubts=True),
}  # fmt: skip
GAP_TASKS = ("gsm8k", "svamp", "math", "humaneval", "mbpp")
MOST_TOKENS = {"svamp": 160, "gsm8k": 160, "math": 300, "humaneval": 240, "mbpp": 180, "doubts": 260}

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
    """Mean of one - other over the same questions, and half of its 95 % interval; nan below two questions."""
    each = [float(a) - float(b) for a, b in zip(one, other, strict=True)]
    mean = sum(each) / max(1, len(each))
    if len(each) < 2:
        return mean, math.nan
    spread = math.sqrt(sum((x - mean) ** 2 for x in each) / (len(each) - 1))
    return mean, ERROR_95 * spread / math.sqrt(len(each))


def within(half: float, digits: int = 3) -> str:
    """Half of an interval, in words of a table."""
    return "± ?" if math.isnan(half) else f"± {half:.{digits}f}"


# -- what is kept ----------------------------------------------------------------------------------------------------

SETTINGS = "settings"
PIECE_BYTES = 1 << 16
"""Of either end of a file, which its digest has, beside its size."""


def digest(path: str | Path | None) -> str | None:
    """Name of a model, a policy or a file by what is in it: its own, and a digest of the sizes and the two ends of its
    files. What is no path, such as an address in a hub, is its own name."""
    if path is None or not (at := Path(path)).exists():
        return None if path is None else str(path)
    made = hashlib.sha256()
    for file in sorted(at.rglob("*")) if at.is_dir() else [at]:
        inner = file.relative_to(at).parts
        if file.is_file() and not any(part.startswith(".") for part in inner):
            size = file.stat().st_size
            made.update(f"{inner} {size}".encode())
            with file.open("rb") as open_file:
                made.update(open_file.read(PIECE_BYTES))
                open_file.seek(max(0, size - PIECE_BYTES))
                made.update(open_file.read(PIECE_BYTES))
    return f"{at.resolve().name} {made.hexdigest()[:16]}"


def task_settings(task: str, questions: Sequence[Question]) -> dict[str, Any]:
    """Settings of a task: its questions, by what is asked, and how long an answer may be."""
    said = json.dumps([[each.id, each.messages] for each in questions])
    return {f"{task} questions": hashlib.sha256(said.encode()).hexdigest()[:16], f"{task} tokens": MOST_TOKENS[task]}


class Record:
    """Lines of JSON in a file, one for each (row, question); what is there is not measured again. A last line that is
    not whole, as a killed process leaves it, is dropped.

    `settings`: what the figures depend on. They stand in lines of their own before the first figure that has them, and
    a record in which one of them has another value is refused, as is one that holds figures and no settings at all.
    Without `settings` it is only read; without a path it lasts as long as its process.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.settings = path, dict[str, Any]()
        held = path is not None and path.is_file()
        if held and not (known := path.read_bytes()).endswith(b"\n"):
            path.write_bytes(known[: known.rfind(b"\n") + 1])
        self.all, told = list[dict[str, Any]](), False
        for each in lines(path) if held else []:
            if SETTINGS in each:
                self.settings, told = {**self.settings, **each[SETTINGS]}, True
            elif "row" in each and "id" in each:
                self.all.append(each)
            else:
                raise SystemExit(f"{path} is no record of this study; give another file.")
        self.known = {(each["row"], each["id"]) for each in self.all}
        self.new = {name: value for name, value in (settings or {}).items() if name not in self.settings}
        if settings is None:
            return
        if self.all and not told:
            raise SystemExit(f"{path} does not say how its figures were made; give another file, or, if they were made "
                             f'as this run makes them, put the line {{"{SETTINGS}": {{}}}} before them.')  # fmt: skip
        for name, value in settings.items():
            if (there := self.settings.get(name, value)) != value:
                raise SystemExit(f"{path} was made with {name} {there}, not {value}; give another file.")

    def settle(self) -> None:
        """Write the settings that are not there yet."""
        if self.new:
            self._write({SETTINGS: self.new})
            self.settings, self.new = {**self.settings, **self.new}, {}

    def add(self, row: str, question: str, **facts: Any) -> None:
        self.settle()
        made = {"row": row, "id": question, **facts}
        self.all.append(made)
        self.known.add((row, question))
        self._write(made)

    def _write(self, made: Mapping[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(made) + "\n")

    def row(self, name: str) -> dict[str, dict[str, Any]]:
        """{question: its facts}"""
        return {each["id"]: each for each in self.all if each["row"] == name}

    def left(self, row: str, questions: Iterable[Question]) -> list[Question]:
        return [each for each in questions if (row, each.id) not in self.known]


# -- the gap ---------------------------------------------------------------------------------------------------------


def gap(args: argparse.Namespace) -> None:
    """Ask in turns: some questions of each task, of each model. So what is recorded compares models wherever it
    ended."""
    from paceline import LLM

    until = time.monotonic() + args.minutes * 60
    every = {name: TASKS[name](args.data) for name in args.tasks.split(",")}
    tasks = {name: questions[args.skip :][: args.questions] for name, questions in every.items()}
    names = dict(each.split("=", 1) for each in args.models)
    settings = {f"model {name}": digest(path) for name, path in names.items()}
    settings |= {"quantize": args.quantize, "context": args.context, "drafter": args.drafter}
    for name, questions in every.items():
        settings |= task_settings(name, questions)
    record = Record(args.out, settings)
    options = {"drafter": args.drafter, "quantize": args.quantize, "max_requests": args.batch}
    options["max_model_len"] = args.context
    with ExitStack() as held:
        models = dict[str, LLM]()
        for start in range(0, args.questions, args.batch):
            for task, questions in tasks.items():
                for name, path in names.items():
                    todo = record.left(f"{task} {name}", questions[start : start + args.batch])
                    if not todo or time.monotonic() > until:
                        continue
                    if name not in models:
                        models[name] = held.enter_context(LLM(path, **options))
                    ask(models[name], task, name, todo, record)
    show_gap(record, list(tasks), list(names))


def ask(llm: Any, task: str, name: str, questions: Sequence[Question], record: Record) -> None:
    from paceline import SamplingParams

    begun, cpu = time.monotonic(), time.process_time()
    wish = SamplingParams(temperature=0, max_tokens=MOST_TOKENS[task])
    answers = llm.chat([each.messages for each in questions], wish, progress=False)
    seconds, cpu = (
        (now - then) / len(questions) for now, then in ((time.monotonic(), begun), (time.process_time(), cpu))
    )
    for question, answer in zip(questions, answers):
        record.add(
            f"{task} {name}", question.id, right=question.right(answer.text), tokens=len(answer.token_ids),
            seconds=round(seconds, 3), cpu=round(cpu, 3), text=answer.text,
        )  # fmt: skip
    print(
        f"{task} {name}: {len(record.row(f'{task} {name}'))} asked, {seconds:.1f} s each", file=sys.stderr, flush=True
    )


def show_gap(record: Record, tasks: Sequence[str], names: Sequence[str]) -> None:
    """Each model's share, and the last model's less the first one's over questions that both were asked."""
    print("task       model     questions  right [95 %]            tokens  s each in a batch")
    for task in tasks:
        rows = {name: record.row(f"{task} {name}") for name in names}
        for name, row in rows.items():
            mine = list(row.values())
            if mine:
                print(f"{task:10} {name:9} {len(mine):9}  {share(sum(x['right'] for x in mine), len(mine)):22}"
                      f" {sum(x['tokens'] for x in mine) / len(mine):7.0f} "
                      f"{sum(x['seconds'] for x in mine) / len(mine):7.1f}")  # fmt: skip
        first, last = rows[names[0]], rows[names[-1]]
        both = [each for each in last if each in first]
        if both and len(names) > 1:
            mean, half = difference(*([row[each]["right"] for each in both] for row in (last, first)))
            print(f"{task:10} gap       {len(both):9}  {mean:.3f} {within(half)}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("what", choices=["gap"])
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=PATH")
    parser.add_argument("--tasks", default=",".join(GAP_TASKS))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH, help="questions asked at once")
    parser.add_argument("--context", type=int, default=2048, help="most tokens of prompt and answer")
    parser.add_argument("--minutes", type=float, default=600, help="begin no batch after these")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--quantize", help="as of the command line; a checkpoint in 4 bits keeps them without")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines; answers that are there are not asked again"
    )
    gap(parser.parse_args(words))


if __name__ == "__main__":
    main()
