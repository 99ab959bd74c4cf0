"""The grammar of parallel texts (Multiverse, arXiv 2506.09991, section 4): tags over tokens, the blocks that they make,
and where training puts each token.

    block = <Parallel> <Goal> (<Outline>id: text</Outline>)+ </Goal>
            (<Path>id: body</Path>)+ <Conclusion> text </Conclusion> </Parallel>

A body may have blocks of its own. Tags may be special tokens or spelled over several: they are found in the text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.core.errors import InputError
from paceline.core.joined import Layout, Stretch, tidy
from paceline.engine.detokenize import Detokenizer

TAG_NAMES = ("Think", "Parallel", "Goal", "Outline", "Path", "Conclusion")
TAG = re.compile(rf"</?({'|'.join(TAG_NAMES)})>")
MAX_TAG_CHARS = max(map(len, TAG_NAMES)) + len("</>")
OUTLINE_LINE = re.compile(r"\s*(\d+(?:\.\d+)*)\s*:(.*)", re.DOTALL)
TAG_PARENTS = {"Goal": ("Parallel",), "Outline": ("Goal",), "Path": ("Parallel",), "Conclusion": ("Parallel",)}
"""What may be around a tag; others stand anywhere but in a goal or an outline."""


class Tag(NamedTuple):
    """An opening or closing tag: its tokens, first and last."""

    name: str
    closes: bool
    first: int
    last: int


class Outline(NamedTuple):
    """A branch to come: "1.2" and what it is about."""

    id: str
    text: str


@dataclass
class Open:
    """A tag that is not closed yet. `inner`: where its text begins, in characters."""

    tag: Tag
    inner: int
    outlines: list[Outline] = field(default_factory=list)
    """Outlines of a block's goal."""
    paths: int = 0


class TagParser:
    """Follows a text token by token, and knows which tags are open. `fault`: the first thing that breaks the grammar,
    in one sentence; a text with a fault has no more blocks."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), start: int = 0, inside: str | None = None) -> None:
        """`tokenizer`: a fast tokenizer of transformers. `before`: tokens that the text follows; `start`: number of its
        first token; `inside`: the tag that is open around it."""
        self._decode = Detokenizer(tokenizer, False, before)
        self.text, self.count = "", start
        self.fault: str | None = None
        around = Tag(inside, False, start, start) if inside else None
        self.stack: list[Open] = [Open(around, 0)] if around else []
        self._ends: list[int] = []
        """Characters known behind each token."""
        self._start, self._read = start, 0

    def feed(self, token: int) -> list[Tag]:
        """The tags that a token completes, in order."""
        self.text += self._decode.push(token)
        self._ends.append(len(self.text))
        self.count += 1
        found = []
        for match in TAG.finditer(self.text, self._read):
            self._read = match.end()
            tag = Tag(match[1], match[0][1] == "/", self._token(match.start()), self.count - 1)
            found.append(tag)
            if self.fault is None:
                self.fault = self._close(tag, match.start()) if tag.closes else self._open(tag, match.end())
        self._read = max(self._read, len(self.text) - MAX_TAG_CHARS)
        return found

    def _token(self, place: int) -> int:
        """The number of the token that has this character."""
        number = len(self._ends) - 1
        while number and self._ends[number - 1] > place:
            number -= 1
        return self._start + number

    def _open(self, tag: Tag, inner: int) -> str | None:
        above = self.stack[-1].tag.name if self.stack else "the text"
        if above not in TAG_PARENTS.get(tag.name, (above,)) or (
            tag.name not in TAG_PARENTS and above in ("Goal", "Outline")
        ):
            return f"<{tag.name}> stands in {above}, at token {tag.first}."
        if tag.name == "Path":
            self.stack[-1].paths += 1
        self.stack.append(Open(tag, inner))
        return None

    def _close(self, tag: Tag, place: int) -> str | None:
        if not self.stack or self.stack[-1].tag.name != tag.name:
            expected = f"</{self.stack[-1].tag.name}>" if self.stack else "no closing tag"
            return f"</{tag.name}> closes nothing, at token {tag.first}; expected is {expected}."
        last = self.stack.pop()
        if tag.name == "Outline":
            match = OUTLINE_LINE.fullmatch(self.text[last.inner : place])
            if match is None:
                return f"The outline that ends at token {tag.last} does not begin with a number and a colon."
            self.stack[-2].outlines.append(Outline(match[1], match[2].strip()))
        return None

    @property
    def goal(self) -> list[Outline]:
        """The outlines of the innermost block, if its goal is known and it has no path yet; else none."""
        if self.fault or not self.stack or self.stack[-1].tag.name != "Parallel" or self.stack[-1].paths:
            return []
        return self.stack[-1].outlines


@dataclass
class TagBlock:
    """One block in a text: the numbers of its tokens. `paths`: first and behind the last of each, tags included."""

    goal: int
    """The last token of `</Goal>`."""
    paths: list[tuple[int, int]] = field(default_factory=list)
    conclusion: int = -1
    """The first token of `<Conclusion>`."""


def blocks(tags: Iterable[Tag]) -> list[TagBlock]:
    """The blocks of a text by their goals' ends, outer ones before those in their paths. InputError where tags do not
    match, or a block has no goal, path or conclusion."""
    stack, made, found = list[Tag](), list[TagBlock | None](), list[TagBlock]()
    for tag in tags:
        if not tag.closes:
            stack.append(tag)
            if tag.name == "Parallel":
                made.append(None)
            if tag.name == "Conclusion" and made and (block := made[-1]):
                block.conclusion = tag.first
            continue
        if not stack or stack[-1].name != tag.name:
            raise InputError(f"</{tag.name}> at token {tag.first} closes nothing; each tag needs its own.")
        first = stack.pop().first
        if tag.name == "Goal" and made:
            found.append(TagBlock(tag.last))
            made[-1] = found[-1]
        elif tag.name == "Path" and made and (block := made[-1]):
            block.paths.append((first, tag.last + 1))
        elif tag.name == "Parallel":
            block = made.pop()
            if block is None or not block.paths or block.conclusion < 0:
                raise InputError(f"The block that ends at token {tag.last} lacks a goal, a path or a conclusion.")
    if stack:
        raise InputError(f"<{stack[-1].name}> at token {stack[-1].first} is not closed.")
    return found


def trained(found: Sequence[TagBlock], length: int) -> tuple[list[int], list[list[bool]]]:
    """Positions of `length` tokens, and the mask [length][length] of what each sees, as the model is trained: every
    path begins behind the goal, the conclusion behind the longest path, and siblings do not see one another."""
    positions = [*range(length)]
    sees = [[key <= row for key in range(length)] for row in range(length)]
    for block in reversed(found):  # those within a path first: it is moved as a whole then
        longest = 0
        for first, stop in block.paths:
            by = positions[block.goal] + 1 - positions[first]
            for token in range(first, length):
                positions[token] += by
            longest = max(longest, positions[stop - 1] - positions[block.goal])
        by = positions[block.goal] + longest + 1 - positions[block.conclusion]
        for token in range(block.conclusion, length):
            positions[token] += by
        for first, stop in block.paths:
            for row in (row for other in block.paths if other[0] > first for row in range(*other)):
                sees[row][first:stop] = [False] * (stop - first)
    return positions, sees


def layout(positions: Sequence[int], sees: Sequence[Sequence[bool]]) -> Layout:
    """Layout as stretches, from each token's position and from the tokens it sees."""
    return tidy([Stretch(at, at - position, gaps(sees[at][:at])) for at, position in enumerate(positions)])


def gaps(seen: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Where a row does not see."""
    edges = [at for at in range(len(seen)) if not seen[at] and (at == 0 or seen[at - 1])]
    ends = [at + 1 for at in range(len(seen)) if not seen[at] and (at + 1 == len(seen) or seen[at + 1])]
    return tuple(zip(edges, ends))


def read(tokenizer: Any, tokens: Sequence[int]) -> list[TagBlock]:
    """The blocks of a whole text. InputError where it breaks the grammar."""
    parser = TagParser(tokenizer)
    tags = [tag for token in tokens for tag in parser.feed(token)]
    if parser.fault:
        raise InputError(parser.fault)
    return blocks(tags)
