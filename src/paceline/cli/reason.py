"""`paceline reason`: one question answered by a policy above tokens."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer

from paceline.cli.answer import Screen, interruptible, note
from paceline.cli.options import INTERRUPTED, EngineArgs, SamplingArgs
from paceline.core.errors import InputError
from paceline.core.system import starting

if TYPE_CHECKING:
    from paceline.core.request import Request
    from paceline.engine.outputs import Chunk
    from paceline.reason.runner import Policy, Runner


@dataclass(frozen=True, slots=True)
class Sources:
    """Second model, index, datastore and settings of a policy."""

    small: str | None
    index: Path | None
    datastore: Path | None
    settings: dict[str, Any]


def reason(
    question: str, policy: str, engine: EngineArgs, sampling: SamplingArgs, sources: Sources, *, color: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Answer a question; the arguments are those of the command."""
    wish, screen = wished(policy, sources), Screen(color)
    show = None if as_json else lambda chunk: write(screen, chunk)
    with begun(question, wish, engine, sampling, sources) as (runner, made, request):
        seconds = follow(runner, request, show)
    if request.finish == "error":
        raise InputError(request.error or "The policy failed.")
    above = made.level.shown(made.kind)
    if as_json:
        entry = {"text": request.text, "token_ids": list(request.output), "finish_reason": request.finish,
                 "seed": request.seed, "seconds": seconds, "above": above, "report": made.report}  # fmt: skip
        typer.echo(json.dumps(entry, ensure_ascii=False))
    elif not request.text.endswith("\n"):
        screen.write("\n")
    note(
        f"{above['policy']}: {above['accepted']} of {above['proposed']} proposals accepted, "
        f"{above['kept_tokens']} of their tokens kept; {len(request.output)} tokens in {seconds:.2f} s, "
        f"{above['saved_seconds']:+.2f} s saved by estimate, "
        f"seed {request.seed}, finish: {request.finish}"
    )
    if request.finish == "abort":
        raise typer.Exit(INTERRUPTED)


def write(screen: Screen, chunk: "Chunk") -> None:
    for text, author in chunk.pieces:
        screen.write(text, author not in (None, "base"))


def follow(runner: "Runner", request: "Request", show: "Callable[[Chunk], None] | None") -> float:
    """Step until the answer has ended; Ctrl-C ends it where it stands. Seconds."""
    from paceline.engine.outputs import Follower

    follower, started = Follower(request, 0), perf_counter()
    with interruptible() as stopped:
        try:
            while request.finish is None and not stopped():
                runner.step()
                chunk = follower.news()
                if chunk and show:
                    show(chunk)
        finally:
            runner.abort(request)
    return perf_counter() - started


@contextmanager
def begun(
    question: str, wish: Any, engine: EngineArgs, sampling: SamplingArgs, sources: Sources
) -> "Iterator[tuple[Runner, Policy, Request]]":
    """An answer that has begun, with the runner that writes it; all of it ends with the block."""
    messages: list[Any] = [{"role": "user", "content": question}]
    with ExitStack() as held:
        with starting():
            from paceline.engine.llm import LLM
            from paceline.reason import Ensemble, MentorSettings, StepSettings
            from paceline.reason.runner import BASE, Runner

            if isinstance(wish, StepSettings | MentorSettings):
                assert sources.small is not None
                pair = held.enter_context(Ensemble(**engine.arguments(), small=sources.small))
                llm, runner = pair.llm, pair.runner
            else:
                llm = held.enter_context(LLM(**engine.arguments()))
                runner = Runner({BASE: llm.engine})
                held.callback(runner.close)
            pool = held.enter_context(ThreadPoolExecutor(1, thread_name_prefix="paceline-retrieval"))
            made, ids = policy_of(wish, runner, llm, messages, sources, pool)
        [request] = runner.submit(ids, sampling.params().resolve(llm.text.defaults), made)
        yield runner, made, request


def wished(policy: str, sources: Sources) -> Any:
    """Settings of a policy, before anything is loaded. InputError where it lacks something."""
    from paceline.reason import MentorSettings, StepSettings
    from paceline.reason.parallel import ParallelSettings
    from paceline.retrieve import Knn, Retrieval

    kinds = {"steps": StepSettings, "mentor": MentorSettings, "parallel": ParallelSettings, "retrieval": Retrieval,
             "neighbours": Knn}  # fmt: skip
    needs = {
        "steps": ("a second, small model", "--small"),
        "mentor": ("a second, small model", "--small"),
        "retrieval": ("an index", "--index"),
        "neighbours": ("a datastore", "--datastore"),
    }
    if policy not in kinds:
        raise InputError(f"policy is {policy!r}, but it must be one of {', '.join(kinds)}.")
    flags = {"--small": sources.small, "--index": sources.index, "--datastore": sources.datastore}
    what, needed = needs.get(policy, ("", ""))
    for flag, given in flags.items():
        if flag == needed and given is None:
            raise InputError(f"Policy {policy} needs {what}; give it with {flag}.")
        if flag != needed and given is not None:
            raise InputError(f"Policy {policy} has no use for {flag}; leave it out.")
    return settled(kinds[policy], sources.settings)


def policy_of(
    wish: Any, runner: "Runner", llm: Any, messages: list[Any], sources: Sources, pool: ThreadPoolExecutor
) -> "tuple[Policy, list[int]]":
    """The policy of one answer, and its prompt."""
    from paceline.reason.ensemble import make
    from paceline.reason.parallel import Parallel, ParallelSettings, conversation, writes_tags
    from paceline.retrieve import Datastore, Knn, PassageIndex, Retrieval
    from paceline.retrieve.knn import KnnWriting
    from paceline.retrieve.policy import Retrieving
    from paceline.retrieve.prompts import QuestionPrompts

    if isinstance(wish, ParallelSettings):
        if "mode" not in sources.settings and writes_tags(llm.text.tokenizer):
            wish = replace(wish, mode="tags")
        return Parallel(wish, conversation(llm.text, messages)), llm.text.chat(messages)
    if isinstance(wish, Knn):
        assert sources.datastore is not None
        return KnnWriting(Datastore.load(sources.datastore), wish, pool), llm.ids(messages)
    if isinstance(wish, Retrieval):
        assert sources.index is not None
        index = PassageIndex.open(sources.index)
        prompts = QuestionPrompts(llm.text, messages, index.passages, wish)
        return Retrieving(prompts, index.retriever(wish.retriever), wish, pool), prompts.bare
    return make(runner, llm.text, wish, messages), llm.text.chat(messages)


def settled(kind: Any, given: dict[str, Any]) -> Any:
    """Settings of a policy. InputError for an unknown setting, or a value of another type."""
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind) if not is_dataclass(hints[field.name])]
    for name, value in given.items():
        if name not in known:
            raise InputError(f"--set {name} is none of this policy's settings: {', '.join(known)}.")
        types = [each for each in get_args(hints[name]) or (hints[name],) if isinstance(each, type)]
        fits = isinstance(value, (*types, int) if float in types else tuple(types))
        if types and (not fits or (isinstance(value, bool) and bool not in types)):
            raise InputError(f"--set {name}={value!r} is of a wrong type; give {types[0].__name__}.")
    return kind(**given)


def values(given: list[str]) -> dict[str, Any]:
    """{name: value} of texts NAME=VALUE; a value is JSON, else a text, as NaN is. InputError."""

    def text_alone(word: str) -> None:
        raise ValueError(word)

    made = dict[str, Any]()
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise InputError(f"--set {each!r} is not NAME=VALUE; write for example --set tau=7.")
        try:
            made[name] = json.loads(value, parse_constant=text_alone)
        except ValueError:
            made[name] = value.replace("\\n", "\n")
    return made
