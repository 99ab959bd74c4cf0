"""Parallel writing (Multiverse, Yang et al. 2025, arXiv 2506.09991): a text forks into branches that are decoded side
by side from one position, and goes on behind all of them. K/V of the branches is spliced at the join, never computed
again.

    tags      the model writes `<Goal>` with outlines itself, as it was trained to; exact against the training mask
    prompt    any instruct model: a grammar makes it list the parts of its answer, each part becomes a branch. What a
              model was not trained for is an approximation: parts do not see one another, by design
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.core.component import TARGET
from paceline.core.errors import InputError, RefusalError
from paceline.core.grammar import Grammar
from paceline.core.operations import Rewind
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.loop import Engine
from paceline.engine.text import Message, Text
from paceline.reason.branching import NO_MEANING, OVERDRAWN_TOKENS, BranchNode, TokenMeaning, Writer
from paceline.reason.level import Level
from paceline.reason.runner import BASE, Stage
from paceline.reason.tags import TAG_NAMES, TagParser

Script = Generator["Future[Any] | None", None, None]
Render = Callable[[str], "Future[list[int]]"]
"""Token ids of the conversation with a text behind its last message, up to where an answer begins."""
PARAGRAPH = 200
"""Tokens of a paragraph that goes on for ever."""
TITLE = r"[^\s:.]([^\n:]{1,38}[^\s:])"
"""Pattern of a point's title, without a colon."""
OUTLINE_PROMPT = (
    "\n\nDo not answer yet. Plan a list of 2 to {most} different points that answer this. Write only the title of "
    "each, of 1 to 5 words, one a line:\n1. First title\n2. Second title"
)
ANSWER_PROMPT = (
    "\n\nAnswer as a numbered list with exactly these points, a paragraph of three to five sentences each:\n{parts}\n"
    "After the list, close with one short sentence."
)

EARLY_PROMPT = (
    "\n\nAnswer as a numbered list of different points, a paragraph of three to five sentences each. After the list, "
    "close with one short sentence."
)


@dataclass
class ParallelSettings:
    """Limits and mode of parallel writing. InputError for values out of range."""

    mode: Literal["tags", "prompt"] = "prompt"
    early: bool = False
    """With prompt: a branch begins as soon as its title is written, while the outline goes on, and so knows none of
    the other titles."""
    depth: int = 2
    """Most levels of branches within branches; deeper blocks are written in sequence. With tags."""
    fan_out: int = 6
    """Most branches of one block; a block with more is written in sequence."""
    path_tokens: int | None = None
    """Most tokens on the longest path through the text; None: max_tokens alone limits it."""
    branch_tokens: int | None = None
    """Most tokens of a branch with all that branches from it; None: in the mode prompt 200, else no limit."""
    conclusion: str = "\n\nOverall,"
    """What the text goes on with behind a list. With prompt."""
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("tags", "prompt"):
            raise InputError(f"mode is {self.mode!r}, but it must be tags or prompt.")
        if self.early and self.mode == "tags":
            raise InputError("early is of the mode prompt: in tags a branch sees the whole outline; leave it out.")
        bounds = {"depth": 1, "fan_out": 2, "path_tokens": 2 * OVERDRAWN_TOKENS, "branch_tokens": 8, "deadline_s": 0}
        for name, least in bounds.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}, but it must be at least {least}.")
        if self.fan_out > 64:
            raise InputError(f"fan_out is {self.fan_out}, but a block may have at most 64 branches.")
        if not self.conclusion:
            raise InputError("conclusion is empty, but something must stand behind the branches.")


class _Spelled:
    """A mode with a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return found


class Tagged(_Spelled):
    """The mode of models that write tags."""

    def __init__(self, tokenizer: Any, settings: ParallelSettings) -> None:
        super().__init__(tokenizer)
        self.settings = settings
        self.sequential = 0
        """Blocks that were written in sequence, because of a limit."""

    def look(self, node: BranchNode, token: int) -> TokenMeaning:
        parser = self._parser(node)
        tags = parser.feed(token)
        if not tags or parser.fault:
            return NO_MEANING
        if node.name and tags[-1].name == "Path" and tags[-1].closes and len(parser.stack) == 1:
            return TokenMeaning(ended=True)
        if not (tags[-1].name == "Goal" and tags[-1].closes and len(parser.goal) > 1):
            return NO_MEANING
        if node.depth >= self.settings.depth or len(parser.goal) > self.settings.fan_out:
            self.sequential += 1
            return NO_MEANING
        branches = tuple((outline.id, self.ids(f"<Path>{outline.id}:")) for outline in parser.goal)
        return TokenMeaning(fork=branches, behind=tuple(self.ids("<Conclusion>")))

    def closing(self, node: BranchNode) -> Sequence[int]:
        names = [each.tag.name for each in self._parser(node).stack[1:]]
        return self.ids("".join(f"</{name}>" for name in reversed(names)))

    def _parser(self, node: BranchNode) -> TagParser:
        if node.mind is None:
            node.mind = TagParser(self.tokenizer, node.request.prompt, node.seen - 1, "Parallel" if node.name else None)
        parser: TagParser = node.mind
        return parser


class Listed(_Spelled):
    """The mode of branches that are paragraphs of a list: one ends at the end of its line."""

    def look(self, node: BranchNode, token: int) -> TokenMeaning:
        if not node.name or node.seen <= node.header:
            return NO_MEANING
        text, before = self.tokenizer.decode([token]), node.mind or ""
        node.mind = before + text
        if "\n" not in text or not before.strip():
            return NO_MEANING
        return TokenMeaning(ended=True, drop=1, instead=tuple(self.ids(text.partition("\n")[0])))

    def closing(self, node: BranchNode) -> Sequence[int]:
        return ()


class Parallel:
    """A policy: writes one answer.

    `report`: blocks that forked and their branches; sequential: blocks that did not; tokens; critical_path: tokens of
    the longest path; parallelism = tokens / critical_path; passes of the target while it was written; the outline and
    its tokens."""

    name = "reasoning"
    kind = "parallel"

    def __init__(self, settings: ParallelSettings | None = None, render: Render | None = None) -> None:
        """`render`: in the mode `prompt`, renders the conversation with the request for an outline, or with the
        outline."""
        self.settings, self.render = settings or ParallelSettings(), render
        self.deadline_s = self.settings.deadline_s
        self.level = Level()
        self.report: dict[str, Any] = {"policy": "parallel", "mode": self.settings.mode}
        self.root: BranchNode | None = None
        self.writer: Writer | None = None
        self.mode: Tagged | Listed | None = None
        self.planned: Request | None = None
        """Writes the outline."""
        self.outline = list[str]()
        self.steps = 0

    def check(self, params: SamplingParams, engines: Mapping[str, Engine]) -> None:
        engine = engines[BASE]
        if "join" not in engine.components[TARGET].abilities:
            raise RefusalError(
                "This model cannot join branches: some of its layers see a window of the text, or keep a state of it."
            )
        if engine.session.tokenizer is None:
            raise RefusalError("Parallel writing needs a tokenizer, and this engine has none.")
        if self.settings.mode == "prompt" and self.render is None:
            raise InputError("The mode prompt needs a conversation: it is asked for the parts of its answer first.")

    def script(self, stage: Stage) -> Script:
        made = list[Request]()
        engine = stage.engines[BASE]
        try:
            work = self._tagged(stage, made) if self.settings.mode == "tags" else self._prompted(stage, made)
            for awaited in work:
                self.steps += awaited is None
                self._tell(stage)
                if not stage.transcript.open:
                    return
                alone, begun = self._alone(), stage.clock()
                before = 0 if alone is None else len(alone.output)
                yield awaited
                self._count(alone, before, stage.clock() - begun)
            self._tell(stage)
            if self.writer is not None and self.writer.over:
                stage.transcript.end("length", "path_tokens")
            if made and made[-1].finish == "error":
                stage.transcript.request.error = made[-1].error
                stage.transcript.end("error")
        finally:
            for request in made:
                engine.abort(request)

    def ended(self, stage: Stage) -> None:
        root, writer, tokens = self.root, self.writer, len(stage.transcript.tokens)
        beyond = 0 if root is None or root.block else len(root.output) - tokens  # the transcript ended before it
        path = tokens if root is None else min(tokens, root.longest - beyond)
        self.level.proposed = self.level.accepted = getattr(writer, "branches", 0)
        segments = stage.transcript.segments
        self.level.kept = sum(each.tokens for each in segments if each.author == "branch")
        counts = {name: getattr(writer, name, 0) for name in ("blocks", "branches", "sequential")}
        if isinstance(self.mode, Tagged):
            counts["sequential"] += self.mode.sequential
        self.report.update(
            counts, tokens=tokens, critical_path=path, parallelism=round(tokens / max(path, 1), 3), passes=self.steps,
            outline=self.outline, outline_tokens=len(self.planned.output) if self.planned else 0,
            why=stage.transcript.why,
        )  # fmt: skip

    def _alone(self) -> Request | None:
        """The outline's request or the text's own, if it is the only one at work."""
        planned = self.planned if self.planned is not None and self.planned.finish is None else None
        if self.root is None:
            return planned
        return self.root.request if planned is None and not self.root.block else None

    def _count(self, alone: Request | None, before: int, seconds: float) -> None:
        """Seconds of a step. Those of a request alone, behind its prompt, are the pace of plain decoding; what its
        branches and the outline take is to be less than the branches' tokens at that pace."""
        if alone is None or alone is self.planned:
            self.level.cheap_s += seconds
        if alone is not None and 0 < before < len(alone.output):
            self.level.expensive += len(alone.output) - before
            self.level.expensive_s += seconds

    # -- modes -------------------------------------------------------------------------------------------------------

    def _tagged(self, stage: Stage, made: list[Request]) -> Script:
        mode = Tagged(stage.engines[BASE].session.tokenizer, self.settings)
        root = self._begin(stage, made, mode, stage.transcript.prompt)
        assert self.writer is not None
        yield from self.writer.follow(root)

    def _prompted(self, stage: Stage, made: list[Request]) -> Script:
        engine, prompt = stage.engines[BASE], stage.transcript.prompt
        outline = yield from self._outline(stage, made)
        while outline.finish is None and not (self.settings.early and titles(outline)):
            yield None
        self.outline = titles(outline)
        listed = len(self.outline) > (0 if self.settings.early else 1)
        if listed:
            parts = "\n".join(f"{i}. {title}" for i, title in enumerate(self.outline, 1))
            extra = EARLY_PROMPT if self.settings.early else ANSWER_PROMPT.format(parts=parts)
            prompt = yield from self._rendered(extra)
        mode = Listed(engine.session.tokenizer)
        root = self._begin(stage, made, mode, prompt)
        assert self.writer is not None
        if listed:
            while not root.output:  # its prompt is computed once, for all branches
                yield None
        if listed and root.request.finish is None:
            engine.apply(Rewind(root.request.id, 0))
            most = self.settings.fan_out if outline.finish is None else len(self.outline)
            yield from self.writer.gather(root, self._headers(outline, mode), most, mode.ids(self.settings.conclusion))
        yield from self.writer.follow(root)

    def _headers(self, outline: Request, mode: Listed) -> "Iterator[tuple[str, list[int]] | None]":
        """(name, the tokens that it begins with) of each branch, as the outline's titles come; None: wait for more."""
        number, ended = 0, False
        while not ended:
            ended = outline.finish is not None
            self.outline = titles(outline)
            for title in self.outline[number:]:
                number += 1
                yield str(number), mode.ids(f"{'' if number == 1 else chr(10)}{number}. {title}:")
            if not ended:
                yield None

    def _rendered(self, extra: str) -> "Generator[Future[Any] | None, None, list[int]]":
        assert self.render is not None
        future = self.render(extra)
        while not future.done():
            yield future
        return future.result()

    def _outline(self, stage: Stage, made: list[Request]) -> "Generator[Future[Any] | None, None, Request]":
        """Begin the parts of the answer, which a grammar makes the model list."""
        most = self.settings.fan_out
        wish = SamplingParams(
            temperature=0.0, max_tokens=min(32 * most, stage.engines[BASE].session.longest // 2), seed=0,
            grammar=Grammar("regex", lines(most)), user=stage.params.user, priority=stage.params.priority,
        )  # fmt: skip
        prompt = yield from self._rendered(OUTLINE_PROMPT.format(most=most))
        made += stage.engines[BASE].submit(prompt, wish)
        self.planned = made[-1]
        return self.planned

    def _begin(self, stage: Stage, made: list[Request], mode: Tagged | Listed, prompt: list[int]) -> BranchNode:
        """The request that writes the text; the transcript ends it, by stop strings and limits."""
        engine, left = stage.engines[BASE], stage.transcript.left
        room = engine.session.longest - len(prompt) - OVERDRAWN_TOKENS
        if room < OVERDRAWN_TOKENS:
            raise InputError(f"A prompt of {len(prompt)} tokens leaves too little room for branches; shorten it.")
        path = min(left, room, self.settings.path_tokens or left)
        wish = replace(
            stage.params, n=1, seed=stage.transcript.request.seed, stop=(), stop_token_ids=(), min_tokens=0,
            max_tokens=path + OVERDRAWN_TOKENS,
        )  # fmt: skip
        made += engine.submit(prompt, wish)
        self.mode, self.root = mode, BranchNode(made[-1], room=room)
        self.writer = Writer(engine, mode, replace(wish, ignore_eos=True, max_tokens=None), path, self._most())
        return self.root

    def _most(self) -> int | None:
        most = self.settings.branch_tokens
        return PARAGRAPH if most is None and self.settings.mode == "prompt" else most

    def _tell(self, stage: Stage) -> None:
        """Give the transcript what is new, in order."""
        known = len(stage.transcript.tokens)
        for name, tokens in self.root.told() if self.root is not None else ():
            if known < len(tokens) and stage.transcript.open:
                notes = {"branch": name} if name else {}
                stage.transcript.add(tokens[known:], "branch" if name else "base", **notes)
            known = max(0, known - len(tokens))


def titles(outline: Request) -> list[str]:
    """The different titles of an outline that stand whole so far."""
    found = [line.partition(". ")[2].strip() for line in outline.text.split("\n")]
    whole = found if outline.finish == "stop" else found[:-1]
    return list(dict.fromkeys(title for title in whole if title))


def lines(most: int) -> str:
    """The language of outlines, as a regular expression: 2 to `most` numbered titles."""
    rest = ""
    for number in range(most, 0, -1):
        line = rf"{number}\. {TITLE}{rest}"
        rest = line if number == 1 else rf"\n{line}" if number == 2 else rf"(\n{line})?"
    return rest


def writes_tags(tokenizer: Any) -> bool:
    """Whether the model has tags of its own, as one that was trained to write in parallel does."""
    vocabulary = tokenizer.get_vocab()
    return all(f"<{name}>" in vocabulary for name in TAG_NAMES)


def conversation(text: Text, messages: Sequence[Message]) -> Render:
    """Renderer of a conversation in Python; its last message is the user's."""
    *before, last = messages

    def render(extra: str) -> "Future[list[int]]":
        done = Future[list[int]]()
        done.set_result(text.chat([*before, {**last, "content": f"{last['content']}{extra}"}]))
        return done

    return render
