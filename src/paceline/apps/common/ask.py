"""A typed call: a prompt and a form go in; a value, an outcome and a confidence come out.

    answer = await ask(client, choice("yes", "no"), Prompt(data=manual, task="May -a be used with -b?"))
    answer.value, answer.confidence, answer.outcome     # "yes", 0.93, "ok"

Nothing is guessed in silence: a value that the model did not give is outcome "fallback", together with the problem.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from .client import AppClient, AppReply, AppSample, CallError, Token
from .confidence import mean, over_words
from .forms import Form

T = TypeVar("T")
Outcome = Literal["ok", "retried", "fallback", "failed"]
APP_TOP = 10


class AskError(Exception):
    """A call that brought no value, asked for by `AppAnswer.get`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked, with what many calls share first, so that the server's prefix cache holds it.

    Messages: `system`; the `examples` (question, answer); then one question, `data` before `task`.
    """

    task: str
    data: str = ""
    system: str = ""
    examples: tuple[tuple[str, str], ...] = ()

    def messages(self) -> list[dict[str, str]]:
        turns = [("system", self.system)] if self.system else []
        for question, answer in self.examples:
            turns += [("user", question), ("assistant", answer)]
        turns.append(("user", f"{self.data}\n\n{self.task}" if self.data else self.task))
        return [{"role": role, "content": content} for role, content in turns]


@dataclass(frozen=True, slots=True)
class AppAnswer(Generic[T]):
    """The result of a call.

    `outcome`: "ok"; "retried" (a later attempt was good); "fallback" (`value` is the caller's); "failed" (no value).
    `problem`, where the model gave no value: "invalid", "truncated", "late", "refused", "unreachable" or "server";
    `detail` says it.
    `confidence` in (0, 1]: of a choice the probability of the word, else the geometric mean over tokens; None unless
    log-probabilities came. `probabilities`: of each word of a choice.
    """

    value: T | None
    outcome: Outcome
    text: str = ""
    problem: str | None = None
    detail: str = ""
    confidence: float | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    """Tokens of the text, where log-probabilities came."""

    def get(self) -> T:
        """The value. Raises AskError where there is none."""
        if self.value is None:
            raise AskError(f"{self.problem}: {self.detail}")
        return self.value


@dataclass(frozen=True, slots=True)
class AppSettings:
    """How a call is made. `retries` further attempts follow an invalid answer, each shown what was wrong with the last;
    `deadline_s` is for all of them together. `seed` None lets the server choose one."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = 0
    stop: tuple[str, ...] = ()
    retries: int = 1
    deadline_s: float | None = None
    logprobs: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self, client: AppClient) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": list(self.stop) or None,
            **self.more,
        }
        if self.logprobs:
            fields.update(logprobs=True, top_logprobs=APP_TOP)
        if client.server_deadlines and self.deadline_s is not None:
            fields["deadline_ms"] = 1000 * self.deadline_s
        return fields


async def ask(
    client: AppClient,
    form: Form[T],
    prompt: Prompt,
    settings: AppSettings = AppSettings(),
    fallback: Callable[[str], T] | None = None,
) -> AppAnswer[T]:
    """Ask once, and again where the answer was invalid. `fallback` makes a value from the problem's name."""
    try:
        async with asyncio.timeout(settings.deadline_s):
            answer = await attempts(client, form, prompt, settings)
    except TimeoutError:
        answer = AppAnswer(None, "failed", problem="late", detail=f"No answer within {settings.deadline_s:g} s.")
    except asyncio.CancelledError:
        client.tally.outcomes["failed: cancelled"] += 1
        raise
    if settings.deadline_s is not None:
        client.tally.deadline(answer.problem != "late")
    if answer.value is None and fallback is not None:
        value = fallback(answer.problem or "")
        answer = AppAnswer(value, "fallback", answer.text, answer.problem, answer.detail, attempts=answer.attempts)
    client.tally.outcomes[answer.outcome if answer.problem is None else f"{answer.outcome}: {answer.problem}"] += 1
    return answer


async def sample(
    client: AppClient,
    form: Form[T],
    prompt: Prompt,
    n: int,
    settings: AppSettings = AppSettings(temperature=0.7),
) -> list[AppAnswer[T]]:
    """n answers to one prompt by one request; each is "ok" or "failed", and there are n of them whatever happens."""
    fields = {**settings.body(client), **form.wire(client.native), "n": n}
    try:
        async with asyncio.timeout(settings.deadline_s):
            reply = await client.chat(prompt.messages(), **fields)
        lost: AppAnswer[T] = AppAnswer(
            None, "failed", problem="server", detail="The server gave fewer samples than asked for."
        )
        answers = [*(read(form, s, client.native) for s in reply.samples), *[lost] * n][:n]
    except TimeoutError:
        answers = [AppAnswer(None, "failed", problem="late", detail=f"No answer within {settings.deadline_s:g} s.")] * n
    except CallError as error:
        answers = [AppAnswer(None, "failed", problem=error.kind, detail=str(error))] * n
    except asyncio.CancelledError:
        client.tally.outcomes["failed: cancelled"] += n
        raise
    if settings.deadline_s is not None:
        client.tally.deadline(all(a.problem != "late" for a in answers))
    for answer in answers:
        client.tally.outcomes[answer.outcome if answer.problem is None else f"failed: {answer.problem}"] += 1
    return answers


async def attempts(client: AppClient, form: Form[T], prompt: Prompt, settings: AppSettings) -> AppAnswer[T]:
    messages = prompt.messages()
    answer: AppAnswer[T] = AppAnswer(None, "failed")
    for attempt in range(settings.retries + 1):
        fields = {**settings.body(client), **form.wire(client.native)}
        if attempt and settings.seed is not None:
            fields["seed"] = settings.seed + attempt
        try:
            reply: AppReply = await client.chat(messages, **fields)
        except CallError as error:
            return AppAnswer(None, "failed", problem=error.kind, detail=str(error), attempts=attempt + 1)
        answer = read(form, reply.samples[0], client.native, attempt + 1)
        if answer.value is not None:
            return answer
        again = f"That was not a valid answer: {answer.detail}. Answer again."
        messages = [
            *prompt.messages(),
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": again},
        ]
    return answer


def read(form: Form[T], sample: AppSample, native: bool, attempt: int = 1) -> AppAnswer[T]:
    """One sample as an answer, without asking again. A text of nothing but blanks is none, whatever the form."""
    try:
        if not sample.text.strip():
            raise ValueError("it is empty")
        value = form.parse(sample.text, native)
    except ValueError as error:
        problem = "truncated" if sample.finish == "length" else "invalid"
        return AppAnswer(None, "failed", sample.text, problem, str(error), attempts=attempt)
    words = over_words(sample.tokens, form.words, not native) if form.words else {}
    sure = words.get(str(value)) if form.words else mean(sample.tokens)
    outcome: Outcome = "ok" if attempt == 1 else "retried"
    return AppAnswer(
        value, outcome, sample.text, confidence=sure, probabilities=words, attempts=attempt, tokens=tuple(sample.tokens)
    )
