"""What all bodies have in common: null is the same as not given, nothing unknown is let through, and a body that is
wrong fails at its first fault, however many it has."""

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from paceline.core.grammar import MOST_DEPTH

MAX_LABEL_CHARS = 512
"""Characters of a name or a label."""
Label = Annotated[str, StringConstraints(max_length=MAX_LABEL_CHARS)]


class FailFast(pydantic.FailFast):
    """A list that ends at its first fault. (pydantic's own is not hashable, which `|` wants of it.)"""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


Ids = Annotated[list[int], FailFast()]


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Let go of nulls, and refuse the first name that is unknown."""
        if not isinstance(data, dict):
            return data
        names = {field.alias or name for name, field in cls.model_fields.items()}
        given = {name: value for name, value in data.items() if value is not None}
        for name in given:
            if name not in names:
                raise PydanticCustomError("unknown_parameter", "unknown", {"name": str(name)})
        return given


def few(most: int) -> BeforeValidator:
    """Limit the number of entries of an object; they are counted before any is parsed."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "too many")
        return value

    return BeforeValidator(check)


def check_depth(value: Mapping[str, Any]) -> Mapping[str, Any]:
    left: list[tuple[Any, int]] = [(value, 1)]
    while left:
        part, depth = left.pop()
        if depth > MOST_DEPTH:
            raise PydanticCustomError("too_deep", "too deep")
        inner = part.values() if isinstance(part, dict) else part
        left += [(each, depth + 1) for each in inner if isinstance(each, dict | list)]
    return value


Shallow = Annotated[dict[str, Any], AfterValidator(check_depth)]
"""Any JSON object that is not nested too deeply to be written again."""
