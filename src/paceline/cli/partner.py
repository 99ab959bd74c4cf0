"""Whom a chat talks with: a model in this process, or one that a server holds."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from paceline.cli.answer import ShownAnswer, answer, interruptible, measure
from paceline.core.errors import InputError, RefusalError

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams
    from paceline.engine.llm import LLM
    from paceline.engine.outputs import Chunk

Message = dict[str, str]
Show = Callable[["Chunk"], None]
WISHES = ("drafter", "max_nodes", "verifier")
TIMEOUT_S = 600.0


class Partner(Protocol):
    name: str
    """Name of the model, as shown to the user."""

    def say(self, messages: Sequence[Message], params: "SamplingParams", show: Show) -> ShownAnswer:
        """The answer to a conversation, shown as it comes; Ctrl-C ends it where it stands. PacelineError when it
        cannot be served."""

    def answered(self) -> None:
        """An answer has been shown, and the next message is not there yet."""

    def drafters(self, name: str = "") -> str:
        """Description of the default drafter and of the available ones. Raises PacelineError if `name` cannot draft."""


class Local:
    """A model in this process."""

    def __init__(self, llm: "LLM") -> None:
        from paceline.engine.pair import paths

        model, draft = paths(llm.options)
        at = "the demo pair" if llm.options.model is None else str(model)
        self.llm = llm
        self.name = at if draft is None or llm.options.model is None else f"{at}, drafts by {draft}"

    def say(self, messages: Sequence[Message], params: "SamplingParams", show: Show) -> ShownAnswer:
        ids, longest = self.llm.text.chat(messages), self.llm.engine.model.max_len
        if len(ids) >= longest:
            raise InputError(
                f"The conversation has {len(ids)} tokens with this message, but the context holds {longest} with at "
                "least one to generate; the message was dropped: send a shorter one, or /reset."
            )
        return answer(self.llm, ids, params, show)

    def answered(self) -> None:
        measure(self.llm)

    def drafters(self, name: str = "") -> str:
        from paceline.core.registry import refusal
        from paceline.draft import DRAFTERS
        from paceline.verify import VERIFIERS

        engine = self.llm.engine
        if name:
            verifier = engine.config.verifier
            reason = refusal(name, DRAFTERS.card(name), verifier, VERIFIERS.card(verifier), engine.drafters.have)
            if reason:
                raise RefusalError(reason)
        return f"{name or engine.config.drafter} (of {', '.join(engine.drafters.cards)})"


class Remote:
    """A model of a server that speaks OpenAI's protocol. With a Paceline server, tokens are coloured here, too."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """`url`: as in http://localhost:8000, with or without /v1. Raises InputError if no server answers there."""
        self.base = url.rstrip("/").removesuffix("/v1") + "/v1"
        if not self.base.startswith(("http://", "https://")):
            raise InputError(f"url is {url!r}, but it must begin with http:// or https://.")
        self.key = key or os.environ.get("PACELINE_API_KEY")
        self.names = [str(entry["id"]) for entry in self._get("/models").get("data", [])]
        if not self.names or (model is not None and model not in self.names):
            raise InputError(f"model is {model!r}, but {url} serves {', '.join(self.names) or 'none'}.")
        self.model = model or self.names[0]
        self.name = f"{self.model} at {url}"
        stats = self._stats(url)
        self.known, self.default = stats.get("drafters", []), stats.get("default_drafter", "the server's")
        self.ours = bool(stats)
        """Whether it is a Paceline server, which takes all of `SamplingParams`."""

    def answered(self) -> None:
        pass

    def _stats(self, url: str) -> dict[str, Any]:
        try:
            found = self._get("/../stats")
        except InputError:
            return {}
        return found if "drafters" in found else {}

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        data = None if body is None else json.dumps(body).encode()
        address = self.base.removesuffix("/v1") + path[3:] if path.startswith("/..") else self.base + path
        try:
            return urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise InputError(said(error.read(), f"{address} answered {error.code}.")) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{address} cannot be reached ({error}); is the server running?") from None

    def _get(self, path: str) -> dict[str, Any]:
        with self._open(path) as answer:
            try:
                found = json.load(answer)
            except ValueError:
                raise InputError(f"{self.base}{path} answers no JSON; is it a server for models?") from None
            return found if isinstance(found, dict) else {}

    def say(self, messages: Sequence[Message], params: "SamplingParams", show: Show) -> ShownAnswer:
        from paceline.core.request import SpecStats
        from paceline.engine.outputs import Chunk, Completion

        started, text, reason, stats, seed, count = perf_counter(), "", "abort", SpecStats(), params.seed or 0, 0
        body = {"model": self.model, "messages": list(messages), "stream": True, **self.wishes(params)}
        with interruptible() as stopped, self._open("/chat/completions", body) as lines:
            for event in events(lines):
                if stopped():
                    reason = "abort"
                    break
                if "error" in event:
                    raise InputError(said(json.dumps(event).encode(), "The server failed."))
                for choice in event.get("choices", ()):
                    new = choice["delta"].get("content") or ""
                    pieces = choice.get("pieces") or [[new, "target"]]
                    if new:
                        by = [(piece, None if who == "target" else who) for piece, who in pieces]
                        show(Chunk(0, new, [], by))
                    text, reason = text + new, choice.get("finish_reason") or reason
                    seed = choice.get("seed", seed)
                if usage := event.get("usage"):
                    count, spec = usage["completion_tokens"], usage.get("speculation", {})
                    passes = spec.get("target_passes", count)
                    stats = SpecStats(passes, count, spec.get("offered", []), spec.get("kept", []))
        finish: Any = reason
        return ShownAnswer(Completion(0, text, [0] * count, finish, seed, stats), perf_counter() - started)

    def wishes(self, params: "SamplingParams") -> dict[str, Any]:
        """What was set, as the server takes it."""
        from paceline.core.params import SamplingParams

        plain = SamplingParams()
        given = {f.name: getattr(params, f.name) for f in fields(params)}
        given = {name: value for name, value in given.items() if value != getattr(plain, name)}
        wish = {name: given.pop(name) for name in WISHES if name in given}
        for name in ("processors", "prompt_logprobs", "logprobs"):
            if given.pop(name, None):
                raise RefusalError(f"{name} cannot be shown by chat; reset it with /set {name}.")
        if params.grammar is not None:
            given["grammar"] = {"kind": params.grammar.kind, "text": params.grammar.text}
        if params.logit_bias:
            given["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
        for name in ("stop", "bad_words", "stop_token_ids"):
            if name in given and not isinstance(given[name], str):
                given[name] = list(given[name])
        given["stream_options"] = {"include_usage": True}
        return {**given, "speculation": {**wish, "trace": True}} if self.ours else given

    def drafters(self, name: str = "") -> str:
        if name and not self.ours:
            raise RefusalError("drafter cannot be chosen: this is not a Paceline server.")
        return f"{name or self.default} (of {', '.join(self.known) or 'unknown'})"


def events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The data of each server-sent event."""
    for line in lines:
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield json.loads(data)


def said(body: bytes, other: str) -> str:
    """The server's own sentence, where it sent one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return other
