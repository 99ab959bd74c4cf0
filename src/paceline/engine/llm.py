"""`LLM`: the offline face. Results in order, one engine, the caller's thread."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine import learned
from paceline.engine.build import build
from paceline.engine.embed import Embedding
from paceline.engine.experts import release
from paceline.engine.options import EngineOptions, Options, shown
from paceline.engine.outputs import Chunk, Follower, RequestOutput, output

if TYPE_CHECKING:
    from paceline.core.user import UserFn
    from paceline.engine.loop import Engine
    from paceline.engine.text import Message, Text

Prompt = str | Sequence[int]


class LLM:
    """A model, optionally a draft, and an engine around them.

    >>> from paceline import LLM, SamplingParams
    >>> with LLM() as llm:  # the demo pair; or LLM("path/or/hub-id", draft="path/or/hub-id")
    ...     [answer] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8))
    >>> len(answer.token_ids)
    8

    Keyword arguments are the fields of `Options`. Use `with`, or call `close`, where the memory is needed again.
    Raises CheckpointError, RefusalError, CapacityError or InputError for a model that cannot be served with these
    options.
    """

    __signature__ = shown()

    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | Path | None = None,
        drafter: "str | UserFn | None" = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.options = Options(model, draft, drafter, **options)  # type: ignore[arg-type]  # lora may be a mapping
        self.engine: Engine
        self.text: Text
        self.engine, self.text = build(self.options)

    def close(self) -> None:
        """Abort unfinished requests and free the models. Harmless when repeated; nothing else works afterwards."""
        engine = self.__dict__.pop("engine", None)
        if engine is not None:
            for request in list(engine.session.requests.values()):
                engine.abort(request)
            learned.keep(engine, self.options)
            if engine.disk is not None:
                engine.disk.close()
            release(engine.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "engine":
            raise RuntimeError("This LLM is closed; make another.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts (texts or token ids); results in order. One SamplingParams for all, or one each.

        Raises InputError, RefusalError or CapacityError before anything runs when one of them cannot be served.
        """
        batch = as_batch(prompts)
        return self._run(
            [self._ids(p) for p in batch], [p if isinstance(p, str) else None for p in batch], params, progress
        )

    def chat(
        self,
        messages: "Sequence[Message] | Sequence[Sequence[Message]]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_args: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each a list of {"role": ..., "content": ...}, by the checkpoint's chat
        template; results in order. template_args: variables of the template, such as `tools`."""
        ids = [self.text.chat(c, **(template_args or {})) for c in as_conversations(messages)]
        return self._run(ids, [None] * len(ids), params, progress)

    def stream(self, prompt: "Prompt | Sequence[Message]", params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Chunks of one prompt (text, token ids, or a conversation) as they come; closing the iterator aborts it."""
        requests = self.engine.submit(self.ids(prompt), self._resolve(params))
        return self._follow(requests)

    def embed(self, texts: Sequence[Prompt], pooling: str = "mean", *, adapter: str = "") -> list[list[float]]:
        """A vector of unit length for each text (or list of token ids), from the model's last hidden states: their
        `mean`, or that of the `last` token; `adapter`: name of the one to compute with. Raises InputError or
        CapacityError."""
        job = Embedding(self.engine, [self.ids(text) for text in texts], pooling, adapter)
        try:
            while not job.done:
                job.start()
                while not job.step():
                    pass
        finally:
            job.close()
        return [vector.tolist() for vector in job.vectors]

    def _follow(self, requests: list[Request]) -> Iterator[Chunk]:
        followers = [Follower(r, i) for i, r in enumerate(requests)]
        try:
            while followers:
                self.engine.step()
                for follower in list(followers):
                    chunk = follower.news()
                    if chunk is None:
                        continue
                    if chunk.done:
                        followers.remove(follower)
                    yield chunk
        finally:
            engine = self.__dict__.get("engine")
            if engine is not None:  # else they were ended by `close`
                for follower in followers:
                    engine.abort(follower.request)

    def ids(self, prompt: "Prompt | Sequence[Message]") -> list[int]:
        """Token ids of a text, of a conversation, or as given."""
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            return self.text.chat(prompt)  # type: ignore[arg-type]
        return self._ids(prompt)  # type: ignore[arg-type]

    def _ids(self, prompt: Prompt) -> list[int]:
        return self.text.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _resolve(self, params: SamplingParams | None) -> SamplingParams:
        return (params or SamplingParams()).resolve(self.text.defaults)

    def _run(
        self,
        prompts: list[list[int]],
        texts: Sequence[str | None],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[RequestOutput]:
        each = params_each(params, len(prompts))
        groups: list[list[Request]] = []
        try:
            for ids, wish in zip(prompts, each):
                groups.append(self.engine.submit(ids, self._resolve(wish)))
            self._finish([r for group in groups for r in group], progress)
        except BaseException:
            for group in groups:
                for request in group:
                    self.engine.abort(request)
            raise
        return [output(group, text) for group, text in zip(groups, texts)]

    def _finish(self, requests: Sequence[Request], progress: bool) -> None:
        """Step until all are done, with a progress bar on standard error where that is a terminal."""
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        screen = Console(stderr=True)
        progress = progress and screen.is_terminal
        columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, console=screen, disable=not progress, transient=True) as bar:
            task = bar.add_task("generating", total=len(requests), note="")
            while any(r.finish is None for r in requests):
                self.engine.step()
                if progress:
                    done = sum(r.finish is not None for r in requests)
                    bar.update(task, completed=done, note=f"{sum(len(r.output) for r in requests)} tokens")


def params_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """SamplingParams for each of `count` prompts. Raises InputError unless there are one or `count` of them."""
    each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * count
    if len(each) != count:
        raise InputError(f"There are {count} prompts but {len(each)} SamplingParams; give one, or one each.")
    return each


def as_conversations(messages: "Sequence[Message] | Sequence[Sequence[Message]]") -> "Sequence[Sequence[Message]]":
    """One conversation or several, as a list of conversations."""
    single = not messages or isinstance(messages[0], Mapping)
    return [messages] if single else messages  # type: ignore[list-item, return-value]


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text or ids) or several, as a list of prompts."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
