"""Events that the runtime in the box reports of a fragment, line by line. The fragment can write there, too: a line
that is no event is reported as a problem and ignored."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from ..common.sandbox.said import Said, said_lines

Short = Annotated[str, StringConstraints(max_length=4000)]
ImportStatement = Annotated[
    str, StringConstraints(max_length=400, pattern=r"^(from [\w.]+ import \w+|import [\w.]+( as \w+)?)$")
]

DottedName = Annotated[str, StringConstraints(max_length=400, pattern=r"^([^\W\d]\w*|<\w+>)(\.([^\W\d]\w*|<\w+>))*$")]
PlainName = Annotated[str, StringConstraints(max_length=400, pattern=r"^[^\W\d]\w*$")]
"""Names that are written into programs, so nothing else may stand there."""


class LineEvent(Said):
    event: Literal["line"]
    line: int


class ValueEvent(Said):
    """A value that was put in."""

    event: Literal["value"]
    key: Short
    line: int
    guess: dict[str, Any]
    tried: int
    shown: Short


class CallEvent(Said):
    """A call that failed and got a value."""

    event: Literal["call"]
    line: int
    name: Short
    error: Short
    message: Short


class ModuleEvent(Said):
    event: Literal["module"]
    name: Short
    line: int


class ImportEvent(Said):
    """A module, or a member of one, that a name stood for, and the statements that import it."""

    event: Literal["import"]
    name: Short
    line: int
    shown: Short
    imports: list[ImportStatement]


class FileEvent(Said):
    """A file or folder that was made because the fragment reads it."""

    event: Literal["file"]
    name: Short
    line: int
    folder: bool


class CalledEvent(Said):
    """A function that nobody called, and the values of its parameters."""

    event: Literal["called"]
    line: int
    name: DottedName
    gets: Literal["", "self", "set", "class"]
    arguments: dict[PlainName, dict[str, Any]]
    named: list[PlainName]


class LateEvent(Said):
    """A called function that had not ended in time."""

    event: Literal["late"]
    line: int
    name: DottedName


class EndEvent(Said):
    event: Literal["end"]
    error: Short | None
    message: Short
    line: int | None
    endless: bool


PicoEvent = Annotated[
    LineEvent | ValueEvent | CallEvent | ModuleEvent | ImportEvent | FileEvent | CalledEvent | LateEvent | EndEvent,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[Any] = TypeAdapter(PicoEvent)


def events_in(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """The events of a report, and how many of its lines are none."""
    read = list(said_lines(EVENT, data))
    return [event.model_dump() for event in read if event is not None], sum(event is None for event in read)
