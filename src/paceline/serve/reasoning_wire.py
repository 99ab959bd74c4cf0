"""What a chat request says under `reasoning`."""

from typing import Literal

from pydantic import Field

from paceline.serve.wire import Wire


class ReasoningWish(Wire):
    """A policy above tokens, and its settings; docs/reasoning.md has the meaning of each."""

    policy: Literal["steps", "mentor", "parallel"] = Field(description='"steps", "mentor" or "parallel"')
    deadline_s: float | None = Field(None, gt=0, description="a positive number of seconds")
    budget: int | None = Field(None, ge=0, description="a whole number >= 0, tokens that the large model may write")
    separator: str | None = Field(None, min_length=1, max_length=64, description="a text of 1 to 64 characters")
    tau: float | None = Field(None, description="a number, by which scores of 0 to 9 are judged; with steps")
    score: Literal["mean", "argmax", "odds"] | None = Field(None, description='"mean", "argmax" or "odds", with steps')
    scale: float | None = Field(None, gt=0, description="a positive number, with steps by odds")
    shift: float | None = Field(None, description="a number, added to the log-odds, with steps by odds")
    first: int | None = Field(None, ge=0, description="a whole number >= 0, with steps")
    step_tokens: int | None = Field(None, ge=1, description="a whole number >= 1, with steps")
    repeats: int | None = Field(None, ge=2, description="a whole number >= 2, with steps")
    speculate: bool | None = Field(None, description="true or false, with steps")
    peek: int | None = Field(None, ge=1, description="a whole number >= 1, with mentor")
    verify: int | None = Field(None, ge=0, description="a whole number >= 0, with mentor")
    begin: int | None = Field(None, ge=0, description="a whole number >= 0, with mentor")
    always: bool | None = Field(None, description="true or false, with mentor")
    choose: Literal["mentor", "opposite"] | None = Field(None, description='"mentor" or "opposite", with mentor')
    check: str | None = Field(None, max_length=2000, description="a text of at most 2000 characters, with mentor")
    mode: Literal["tags", "prompt"] | None = Field(None, description='"tags" or "prompt", with parallel')
    early: bool | None = Field(None, description="true or false, with parallel")
    depth: int | None = Field(None, ge=1, description="a whole number >= 1, with parallel")
    fan_out: int | None = Field(None, ge=2, le=64, description="a whole number from 2 to 64, with parallel")
    path_tokens: int | None = Field(None, ge=256, description="a whole number >= 256, with parallel")
    branch_tokens: int | None = Field(None, ge=8, description="a whole number >= 8, with parallel")
    conclusion: str | None = Field(
        None, min_length=1, max_length=200, description="a text of 1 to 200 characters, with parallel"
    )
