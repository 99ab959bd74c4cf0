"""What drafters learn from: JSON lines of texts, chats or prompts, and the target's own answers to prompts.

A line is an object. The first of these that it has says what it is:

    messages (or conversations)   a chat, [{"role", "content"}, ...]; its last answer is to be predicted
    text                          a text, all of it to be predicted
    prompt, question, instruction or turns, with completion, answer, output or response   a prompt with its answer
    the same without an answer    a prompt
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.prompts import encode, has_template, read_text
from paceline.core.errors import InputError
from paceline.train.files import directory, keep, whole_lines, writing
from paceline.train.target import TrainingTarget

log = logging.getLogger("paceline")
PROMPTS, ANSWERS = ("prompt", "question", "instruction", "turns"), ("completion", "answer", "output", "response")
GENERATION_BATCH = 32
"""Answers that are generated together."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids, and the first of them that is to be predicted."""

    ids: tuple[int, ...]
    start: int


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, or of one JSON list. Raises InputError naming the line."""
    text = read_text(path)
    entries: list[Any]
    if text.lstrip()[:1] == "[":
        try:
            entries = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} does not parse as JSON ({error}); give one JSON object a line.") from None
    else:
        entries = []
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                entries.append(json.loads(line))
            except ValueError as error:
                place = f"{path}, line {number}"
                raise InputError(f"{place} does not parse as JSON ({error}); give one JSON object a line.") from None
    wanted = "give JSON objects with text, messages, or prompt (and answer)."
    if not entries:
        raise InputError(f"{path} has no usable line; {wanted}")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise InputError(f"{path}: entry {number} is {json.dumps(entry)[:40]}, not an object; {wanted}")
    return entries


def parts(entry: dict[str, Any]) -> tuple[list[dict[str, str]] | str, str | None] | None:
    """(conversation or prompt, its answer or None) of a line; a text is ("", text). None: not usable."""
    chat = entry.get("messages", entry.get("conversations"))
    if isinstance(chat, list) and chat:
        turns = list[dict[str, str]]()
        for turn in chat:
            said = content(turn.get("content", turn.get("value"))) if isinstance(turn, dict) else None
            if said is None:
                return None
            turns.append({"role": role(turn), "content": said})
        last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=None)
        if last is None:
            return turns, None
        return (turns[:last], turns[last]["content"] or None) if last else None
    if isinstance(entry.get("text"), str) and entry["text"]:
        return "", entry["text"]
    prompt = next((entry[name] for name in PROMPTS if entry.get(name)), None)
    prompt = prompt[0] if isinstance(prompt, list) and prompt else prompt
    if not isinstance(prompt, str):
        return None
    if more := entry.get("input"):
        if not isinstance(more, str):
            return None
        prompt = f"{prompt}\n\n{more}"
    answer = next((entry[name] for name in ANSWERS if isinstance(entry.get(name), str) and entry[name]), None)
    return prompt, answer


def content(value: Any) -> str | None:
    """The text of a turn, whole or in parts; None where there is anything but text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if len(found) == len(texts) else None


def usable(entries: Sequence[dict[str, Any]], answers: bool) -> list[dict[str, Any]]:
    """The lines that can be learned from, by the target's own `answers` or as they stand. The others are counted in the
    log."""
    able = list[dict[str, Any]]()
    for entry in entries:
        found = parts(entry)
        if found is not None and (found[0] if answers else found[1]) and encodes(found):
            able.append(entry)
    what = "prompt" if answers else "answer"
    left_out(len(entries) - len(able), len(entries), f"lines are left out: they have no {what} that is text.")
    return able


def encodes(found: Any) -> bool:
    """Whether all is text that a tokenizer takes: no lone surrogates."""
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def role(turn: dict[str, Any]) -> str:
    said = str(turn.get("role", turn.get("from", "user")))
    return {"human": "user", "gpt": "assistant"}.get(said, said)


def prompt_ids(target: TrainingTarget, prompt: list[dict[str, str]] | str) -> list[int]:
    """Token ids up to where the answer begins; a lone prompt is a user's message where the target has a template."""
    if isinstance(prompt, str):
        return encode(target.text, prompt) if prompt else []
    if has_template(target.text):
        return target.text.chat(prompt)
    return target.text.encode("\n".join(turn["content"] for turn in prompt))


def given(target: TrainingTarget, entries: Sequence[dict[str, Any]], most: int) -> Iterator[Sample]:
    """Lines as they stand: texts, and prompts with their answers; at most `most` tokens each."""
    ends, short = [token for token in target.text.eos() if isinstance(token, int)][:1], 0
    for entry in entries:
        found = parts(entry)
        if found is None or found[1] is None:
            continue
        ids = prompt_ids(target, found[0])
        tail = (
            target.text.encode(found[1])
            if not ids
            else target.text.tokenizer.encode(found[1], add_special_tokens=False)
        )
        ids, start = [*ids, *tail, *(ends if ids else [])], max(1, len(ids))
        if len(ids[:most]) > start + 1:
            yield Sample(tuple(ids[:most]), start)
        else:
            short += 1
    left_out(short, len(entries), f"lines are left out: nothing to learn is within {most} tokens.")


def answered(
    target: TrainingTarget, entries: Sequence[dict[str, Any]], most: int, *, limit: int | None = None,
    cache: Path | None = None, answer: int = 160, temperature: float = 0.0, seed: int = 0,
) -> list[Sample]:  # fmt: skip
    """The target's own answers, by our engine, to the first `limit` prompts: what a drafter will see when it serves.
    `cache`: a directory that keeps them, by target, prompts and these arguments."""
    prompts = [found[0] for entry in entries if (found := parts(entry)) is not None and found[0]][:limit]
    ids = [each for prompt in prompts if 0 < len(each := prompt_ids(target, prompt)) <= most - 8]
    left_out(len(prompts) - len(ids), len(prompts), f"prompts are left out: they leave no room in {most} tokens.")
    if not ids:
        raise InputError(
            "The data has no prompt for the target to answer; give lines with prompt, question or messages."
        )
    key = json.dumps([target.fingerprint, target.dtype, ids, most, answer, temperature, seed])
    file = None if cache is None else cache / f"answers-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl"
    done = kept(file, len(ids))
    if len(done) < len(ids):
        generate(target, ids, done, file, most, answer, temperature, seed)
    made = [sample for sample in done if len(sample.ids) - sample.start > 2]
    left_out(len(done) - len(made), len(done), "answers are left out: they have fewer than 3 tokens.")
    return made


def left_out(count: int, of: int, why: str) -> None:
    """Say in the log that some are left out, and why."""
    if count:
        log.warning("%d of %d %s", count, of, why)


def kept(file: Path | None, count: int) -> list[Sample]:
    """The answers that a file holds, one a line, to `count` prompts. Whole batches of them, so that those that follow
    are answered next to the same others as without a stop; the rest is cut from the file."""
    if file is None or not file.is_file():
        return []
    lines, samples = whole_lines(file), list[Sample]()
    for line in lines[:count]:
        try:
            ids, start = json.loads(line)
            samples.append(Sample(tuple(ids), start))
        except (ValueError, TypeError):  # zeros that a power cut left
            break
    if len(samples) < count:
        samples = samples[: len(samples) // GENERATION_BATCH * GENERATION_BATCH]
    if len(samples) < len(lines):
        keep(file, sum(len(line) + 1 for line in lines[: len(samples)]))
    return samples


def generate(
    target: TrainingTarget, prompts: Sequence[list[int]], done: list[Sample], file: Path | None, most: int, answer: int,
    temperature: float, seed: int,
) -> None:  # fmt: skip
    """Answer the prompts behind those that are `done`, and add to them and to the file, some at a time: what is killed
    loses little. With prompt lookup as the drafter: the text is the target's own with any drafter."""
    from paceline import LLM, SamplingParams

    if file is not None:
        directory(file.parent)
    with LLM(target.path, dtype=target.dtype, drafter="ngram", max_requests=GENERATION_BATCH) as llm:
        for start in range(len(done), len(prompts), GENERATION_BATCH):
            some = prompts[start : start + GENERATION_BATCH]
            each = [
                SamplingParams(
                    temperature=temperature, top_k=0, top_p=1.0, seed=seed + start + i,
                    max_tokens=min(answer, most - len(ids)),
                )
                for i, ids in enumerate(some)
            ]  # fmt: skip
            outputs = llm.generate(list(some), each)
            new = [Sample((*ids, *output.token_ids), len(ids)) for ids, output in zip(some, outputs)]
            done += new
            if file is not None:
                with writing(file.parent), file.open("a", encoding="utf-8") as lines:
                    lines.writelines(f"{json.dumps([sample.ids, sample.start])}\n" for sample in new)
