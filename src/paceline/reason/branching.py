"""Base of both modes of parallel writing: a request that forks into branches, is followed, and joined; and the order in
which all of it is written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.core.operations import Branch, Close, Extend, Join, Rewind
from paceline.core.params import SamplingParams
from paceline.core.request import Request
from paceline.engine.loop import Engine

OVERDRAWN_TOKENS = 128
"""Tokens beyond a limit that an engine may draw before they are taken back."""
RESERVED_TOKENS = 32
"""Tokens of the longest path that branches leave to what follows them."""


@dataclass(eq=False)
class BranchNode:
    """A request as its policy follows it: the answer itself, or a branch. `name`: "" or "1.2"."""

    request: Request
    name: str = ""
    depth: int = 0
    seen: int = 0
    """Tokens of the output that were looked at."""
    said: int = 0
    """Tokens of the output that are in `parts`, or came before this branch."""
    parts: list[tuple[str, list[int]]] = field(default_factory=list)
    """(name, tokens) of what can change no more: itself, and what was joined."""
    block: list["BranchNode"] = field(default_factory=list)
    """Branches that this request waits for."""
    start: int = 0
    """Tokens of the output that came before this branch."""
    room: int = 0
    """Maximum tokens of its own, its branches included: all of them must fit the context together."""
    header: int = 0
    """Tokens of the output up to the end of those that a branch begins with."""
    mind: Any = None
    """State of the writing mode (`prompt` or `tags`) for this request."""

    @property
    def output(self) -> list[int]:
        """Tokens, without an end of sequence that ended a branch."""
        return self.request.tokens[len(self.request.prompt) :]

    @property
    def path(self) -> int:
        """Tokens on the way to its end: of branches that were joined those of the longest."""
        return len(self.output) - self.request.shift

    @property
    def longest(self) -> int:
        """Tokens on the longest way to the end of a branch, or to its own."""
        return max([self.path, *(child.longest for child in self.block)])

    def told(self) -> Iterator[tuple[str, list[int]]]:
        """(name, tokens) in the order of the joined text, up to the first branch that goes on."""
        yield from self.parts
        yield self.name, self.output[self.said :]
        for child in self.block:
            yield from child.told()
            if child.request.finish is None:
                return

    def joined(self, before: int) -> None:
        """Note that the branches were joined: they stand in the output, after `before` tokens."""
        self.parts.append((self.name, self.output[self.said : before]))
        for child in self.block:
            mine = [*child.parts, (child.name, child.output[child.said :])]
            before += sum(len(tokens) for _, tokens in mine)
            self.parts += mine
        self.said, self.block = before, []


@dataclass(frozen=True, slots=True)
class TokenMeaning:
    """What a token means. The branch has `ended`, with `instead` in place of its last `drop` tokens; or branches `fork`
    here, each (name, the tokens that it begins with), and `behind` them the text goes on with these."""

    ended: bool = False
    drop: int = 0
    instead: tuple[int, ...] = ()
    fork: tuple[tuple[str, list[int]], ...] = ()
    behind: tuple[int, ...] = ()


NO_MEANING = TokenMeaning()


class BranchingMode(Protocol):
    """How branches are distinguished from text."""

    def look(self, node: BranchNode, token: int) -> TokenMeaning:
        """One more token of a node's output. Each comes once, in order, those that were joined, too."""

    def closing(self, node: BranchNode) -> Sequence[int]:
        """Tokens that must follow a branch that is ended from outside."""


class Writer:
    """Follows a tree of requests, step by step."""

    def __init__(
        self, engine: Engine, mode: BranchingMode, params: SamplingParams, path_tokens: int, most: int | None
    ) -> None:
        """`params`: of branches, whose text does not end by itself. `path_tokens`: most tokens of the longest path;
        `most`: of a branch."""
        self.engine, self.mode, self.params = engine, mode, params
        self.path_tokens, self.most = path_tokens, most
        self.blocks = self.branches = self.sequential = 0
        """Blocks that forked, their branches, and blocks that did not for want of room."""
        self.over = False
        """The text itself has come to its limit."""

    def follow(self, node: BranchNode) -> Iterator[None]:
        """Until a node has ended, or the limit of the text is reached."""
        while node.request.finish is None and not self.over:
            yield from self._look(node)
            if node.request.finish is None and not self.over:
                yield None

    def _look(self, node: BranchNode) -> Iterator[None]:
        request = node.request
        while node.seen < len(node.output) and request.finish is None and request.closing is None:
            token = node.output[node.seen]
            node.seen += 1
            turn = self.mode.look(node, token)
            path = node.path - (len(node.output) - node.seen)
            own = node.seen - node.start
            if not node.name and (path >= self.path_tokens or own >= node.room):
                self._cut(node, node.seen)
                self.over = True
            elif node.name and turn.ended:
                self._end(node, turn.drop, turn.instead)
            elif node.name and (token in request.eos or path >= self.path_tokens - RESERVED_TOKENS or own >= node.room):
                self._end(node, int(token in request.eos), self.mode.closing(node))
            elif turn.fork and not self._fits(node, path, len(turn.fork)):
                self.sequential += 1
            elif turn.fork:
                self._cut(node, node.seen)
                yield from self.fork(node, turn.fork, turn.behind)

    def _fits(self, node: BranchNode, path: int, count: int) -> bool:
        """True if there is room for `count` branches."""
        return path + 2 * RESERVED_TOKENS < self.path_tokens and share(node, count) >= 2 * RESERVED_TOKENS

    def _cut(self, node: BranchNode, length: int) -> None:
        """Take back what was drawn beyond: the engine may draw several tokens a step."""
        if len(node.request.output) > length:
            self.engine.apply(Rewind(node.request.id, length))

    def _end(self, node: BranchNode, drop: int, instead: Sequence[int]) -> None:
        self._cut(node, node.seen - drop)
        if instead:
            self.engine.apply(Extend(node.request.id, [*instead]))
        node.seen = len(node.request.output)
        self.engine.apply(Close(node.request.id))

    def fork(
        self, node: BranchNode, branches: Sequence[tuple[str, list[int]]], behind: Sequence[int]
    ) -> Iterator[None]:
        """Branches of a node, until all have ended and are joined."""
        return self.gather(node, iter(branches), len(branches), behind)

    def gather(
        self, node: BranchNode, coming: Iterator[tuple[str, list[int]] | None], most: int, behind: Sequence[int]
    ) -> Iterator[None]:
        """Branches of a node, at most `most`, each opened when it comes (None: later), until no more come, and all have
        ended and are joined."""
        before, room = len(node.output), share(node, most)
        room = room if self.most is None else min(room, self.most)
        scripts, over = list[Iterator[None]](), False
        self.blocks += 1
        while not over or scripts:
            for branch in coming:
                if branch is None:
                    break
                node.block.append(self._begin(node, *branch, room))
                self.branches += 1
                scripts.append(self.follow(node.block[-1]))
            else:
                over = True
            scripts = [script for script in scripts if next(script, self) is None]
            if scripts or not over:
                yield None
        self.engine.apply(Join(node.request.id, [child.request.id for child in node.block], [*behind]))
        node.joined(before)
        self._skim(node)

    def _begin(self, node: BranchNode, name: str, header: list[int], room: int) -> BranchNode:
        [request] = self.engine.apply(Branch(node.request.id, 1, self.params))
        start = len(request.output)
        self.engine.apply(Extend(request.id, header))
        child = BranchNode(
            request, name, node.depth + 1, start, start, start=start, room=room, header=start + len(header)
        )
        self._skim(child)
        return child

    def _skim(self, node: BranchNode) -> None:
        """Let the mode see tokens that mean nothing more."""
        for token in node.output[node.seen :]:
            self.mode.look(node, token)
        node.seen = len(node.output)


def share(node: BranchNode, branches: int) -> int:
    """Maximum tokens of each of a node's `branches`: what follows them has its own."""
    return (node.room - (node.seen - node.start) - 2 * RESERVED_TOKENS) // branches - RESERVED_TOKENS
