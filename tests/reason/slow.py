"""Slow twins of steps and mentor: the papers' loops over plain greedy requests, each of its whole text."""

from dataclasses import replace
from typing import Any

from paceline import SamplingParams
from paceline.core.params import SamplingParams as Params
from paceline.reason import Ensemble, MentorSettings, StepSettings
from paceline.reason.judge import DraftJudge, score
from paceline.reason.runner import BASE, SMALL

Trace = list[tuple[str, list[int], float | None]]
"""(author, tokens, score) of each part of the text."""


def greedy(pair: Ensemble, name: str, tokens: list[int], most: int, **changes: Any) -> Any:
    """A request over these tokens as its prompt, when it has ended."""
    engine = pair.runner.engines[name]
    engine.cache.drop_prefix()
    wish: Params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, drafter="none").resolve({})
    [request] = engine.submit(tokens, replace(wish, **changes))
    while request.finish is None:
        engine.step()
    return request


def steps(pair: Ensemble, prompt: list[int], wish: StepSettings, most: int) -> Trace:
    """SpecReason's loop."""
    judge, digits, trace, text = DraftJudge.of(pair.llm.text), 10, Trace(), list[int]()

    def step(name: str) -> list[int]:
        left = min(wish.step_tokens, most - len(text))
        made: list[int] = greedy(pair, name, [*prompt, *text], left, stop=(wish.separator,), include_stop=True).output
        return made

    while len(text) < most:
        if len(trace) < wish.first:
            trace.append((BASE, step(BASE), None))
        else:
            part, author = step(SMALL), SMALL
            ends = pair.llm.engine.session.eos
            asked = [*prompt, *text, *(token for token in part if token not in ends), *judge.suffix]
            told = greedy(pair, BASE, asked, 1, allowed_tokens=judge.digits, logprobs=digits).logprobs[0].top
            grade = score(told, judge.digits, wish.score)
            if grade < wish.tau:
                part, author = step(BASE), BASE
            trace.append((author, part, grade))
        text += trace[-1][1]
    return trace


def mentor(pair: Ensemble, prompt: list[int], wish: MentorSettings, most: int) -> list[tuple[str, list[int]]]:
    """Speculative Thinking's loop, the neutral peek kept: (author, tokens) of each part."""
    trace, text, say = list[tuple[str, list[int]]](), list[int](), pair.llm.text.tokenizer.decode
    reflections, excess, recap = 0, wish.excess, wish.recap

    def add(author: str, tokens: list[int]) -> None:
        tokens = tokens[: most - len(text)]
        text.extend(tokens)
        trace.append((author, tokens))

    def large(tokens: int) -> list[int]:
        made: list[int] = greedy(pair, BASE, [*prompt, *text], min(tokens, most - len(text))).output
        return made

    if wish.begin:
        add("mentor", large(wish.begin))
    while len(text) < most:
        new: list[int] = greedy(pair, SMALL, [*prompt, *text], most - len(text)).output
        peek = student(wish, text, new, say, reflections >= excess, add)
        if not peek or len(text) >= most:
            continue
        if reflections >= excess:
            add("mentor", pair.llm.text.tokenizer.encode(wish.check, add_special_tokens=False))
            if len(text) < most:
                add("mentor", large(recap))
            reflections, recap, excess = 0, min(recap + 25, 200), min(excess + 5, 30)
            continue
        theirs = large(wish.peek)
        opposite = wish.cues.sentiment(say(theirs)) * wish.cues.sentiment(say(peek)) < 0
        author, winner = ("mentor", theirs) if wish.choose == "mentor" or opposite else (SMALL, peek)
        add(author, winner)
        reflections += wish.cues.sentiment(say(winner)) < 0
        if len(text) < most and wish.cues.verifies(say(winner)):
            add("mentor", large(wish.verify))
    return trace


def student(wish: MentorSettings, text: list[int], new: list[int], say: Any, tired: bool, add: Any) -> list[int]:
    """Take the student's new tokens up to the peek that needs the mentor; that peek, or nothing."""
    start, taken, since = (
        list(text),
        0,
        len(say(text).rsplit(wish.separator, 1)[0]) if wish.separator in say(text) else 0,
    )
    since += len(wish.separator) if since or say(text).startswith(wish.separator) else 0
    for at in range(1, len(new) + 1):
        whole = say([*start, *new[:at]])
        if wish.separator not in whole[since:].lstrip():
            continue
        since = len(whole)
        if at < taken:
            continue
        add(SMALL, new[taken:at])
        taken, peek = at, new[at : at + wish.peek]
        if not peek:
            return []
        if wish.always or wish.cues.sentiment(say(peek)) or tired:
            return peek
        add(SMALL, peek)
        taken += len(peek)
    add(SMALL, new[taken:])
    return []
