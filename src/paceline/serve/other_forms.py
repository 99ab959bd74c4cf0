"""How clients of vLLM, SGLang and llama-server say what form an answer has, as this server's `grammar`."""

import json
import re
from typing import Any

SAME_AS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Parameters of other servers, and which member of vLLM's `structured_outputs` says the same."""
VLLM_FORMS = "structured_outputs"
OTHER_FORMS = (*SAME_AS, VLLM_FORMS)
VLLM_MEMBERS = ("json", "regex", "choice", "grammar", "json_object")
GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
"""A rule of GBNF, which is written otherwise than one of Lark."""
MOST_CHOICES = 1024
"""Texts among which an answer may choose."""


def formed(data: dict[str, Any]) -> dict[str, Any]:
    """A body whose form of the answer stands under `grammar`, as {"kind": ..., "text": ...}. A body that names none of
    `OTHER_FORMS` comes back as it is. Raises ValueError for two forms, and for what cannot be enforced."""
    if data.get("grammar") == "":  # llama-server's clients send it where there is none
        data = {name: value for name, value in data.items() if name != "grammar"}
    given = [name for name in OTHER_FORMS if data.get(name) is not None]
    if not given:
        return data
    if len(given) > 1 or data.get("grammar") is not None:
        raise ValueError(f"{given[0]} and {[*given, 'grammar'][1]} both shape the whole answer; give one.")
    [name] = given
    where, member, value = name, SAME_AS.get(name), data[name]
    if member is None:
        where, member, value = chosen(value)
    left = {key: each for key, each in data.items() if key not in OTHER_FORMS}
    return {**left, **({} if member is None else {"grammar": spec(member, value, where)})}


def chosen(value: Any) -> tuple[str, str | None, Any]:
    """(Place, member, value) of the one form that `structured_outputs` names; None for an object without any."""
    if not isinstance(value, dict):
        raise ValueError(f"{VLLM_FORMS} is not an object; give one of {', '.join(VLLM_MEMBERS)}.")
    given = [name for name, each in value.items() if each is not None and each is not False]
    if other := [name for name in given if name not in VLLM_MEMBERS]:
        raise ValueError(
            f"{VLLM_FORMS} has {str(other[0])[:64]!r}, which is not supported; give {', '.join(VLLM_MEMBERS)}."
        )
    if len(given) > 1:
        raise ValueError(f"{VLLM_FORMS} has {given[0]} and {given[1]}; give one.")
    return (f"{VLLM_FORMS}.{given[0]}", given[0], value[given[0]]) if given else (VLLM_FORMS, None, None)


def spec(member: str, value: Any, where: str) -> dict[str, Any]:
    """The `grammar` of one form. A schema may be an object or its text; choices are texts."""
    if member == "json_object":
        if value is not True:
            raise ValueError(f"{where} must be true or false.")
        return {"kind": "json_object"}
    if member == "choice":
        return {"kind": "lark", "text": "start: " + " | ".join(map(json.dumps, choices(value, where)))}
    if member == "json" and isinstance(value, dict):
        try:
            value = json.dumps(value)
        except RecursionError:
            raise ValueError(f"{where} is nested too deeply.") from None
    if not isinstance(value, str) or not value:
        need = "a JSON schema, as an object or a text" if member == "json" else "a text that is not empty"
        raise ValueError(f"{where} must be {need}.")
    if member == "grammar" and GBNF_RULE.search(value):
        raise ValueError(f"{where} is in GBNF or EBNF, but a grammar must be in Lark: start: ...")
    return {"kind": {"json": "json_schema", "grammar": "lark"}.get(member, member), "text": value}


def choices(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_CHOICES:
        raise ValueError(f"{where} must be a list of texts, at most {MOST_CHOICES}.")
    if not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"{where} must be a list of texts that are not empty.")
    return value
