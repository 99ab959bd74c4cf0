"""What a box says is data of a stranger: read by a schema, or not at all."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

S = TypeVar("S")
MOST_SAID_BYTES = 32 << 20
"""Size limit of one file or line from a box."""
MOST_LINES = 200_000


class Said(BaseModel):
    """A record that a box writes. Fields of other names are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def read_said(adapter: TypeAdapter[S], data: bytes | str) -> S | None:
    """One value; None for what does not fit the schema."""
    if len(data) > MOST_SAID_BYTES:
        return None
    try:
        return adapter.validate_json(data)
    except ValidationError:
        return None


def said_lines(adapter: TypeAdapter[S], data: bytes) -> Iterator[S | None]:
    """The values of a file, one a line; None for each line that does not fit, and for what is too much."""
    lines = data[:MOST_SAID_BYTES].split(b"\n")
    for line in lines[:MOST_LINES]:
        if line.strip():
            yield read_said(adapter, line)
    if len(data) > MOST_SAID_BYTES or len(lines) > MOST_LINES:
        yield None
