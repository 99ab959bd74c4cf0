"""What clients of other servers send: fields under other names, those that change nothing, those that cannot be served,
and tools that are no functions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

NO_MEDIA = "only text is served"
GIVE_ADAPTER = "give the adapter's name as model; the server loads it with --lora"
GIVE_KWARGS = "give it in chat_template_kwargs, if the model's chat template reads it"
NO_SAMPLER = "this way of sampling is not served; leave it out"
UNSUPPORTED = {
    "best_of": "give n, and choose by logprobs",
    "suffix": "give it to /v1/completions, or as input_suffix to /infill",
    "use_beam_search": "beam search is not served; give n",
    "beam_width": "beam search is not served; give n",
    "length_penalty": "beam search is not served",
    "early_stopping": "beam search is not served",
    "lora": GIVE_ADAPTER,
    "lora_path": GIVE_ADAPTER,
    "lora_request": GIVE_ADAPTER,
    "adapter": GIVE_ADAPTER,
    "audio": NO_MEDIA,
    "modalities": NO_MEDIA,
    "images": NO_MEDIA,
    "functions": "give tools",
    "function_call": "give tool_choice",
    "prediction": "it must be an object; predicted output is found by the drafters themselves",
    "cache_prompt": "prefixes are always shared",
    "verbosity": "ask for it in the prompt",
    "web_search_options": "the server searches nothing",
    "service_tier": "give priority",
    "store": "nothing is stored",
    "metadata": "it must be an object, of which nothing is stored",
    "safety_identifier": "it must be a text; give user as a label",
    "client_metadata": "it must be an object, of which nothing is stored",
}
"""Parameters of other servers and why they are refused."""
UNKNOWN_PARAMETERS = {
    "guided_whitespace_pattern": "white space between the parts of a JSON text is free",
    "guided_decoding_backend": "grammars are compiled by one library",
    "enable_thinking": GIVE_KWARGS,
    "extra_body": "give its fields in the body itself",
    "typical_p": NO_SAMPLER,
    "tfs_z": NO_SAMPLER,
    "top_a": NO_SAMPLER,
    "mirostat": NO_SAMPLER,
    "dry_multiplier": NO_SAMPLER,
    "xtc_probability": NO_SAMPLER,
    "dynatemp_range": NO_SAMPLER,
    "n_keep": "no text is shortened here",
    "id_slot": "a request finds the slot whose text it continues",
    "detokenize": "answers are texts; logprobs lists their tokens",
    "return_token_ids": "give logprobs",
    "timings_per_token": "usage and /metrics have the times",
    "include_reasoning": "what a model thinks is in reasoning_content",
}
"""Parameters that are unknown, and what to do instead; --unknown-parameters warn lets go of them."""


def either(*values: object) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(each) and value == each for each in values)


HARMLESS: dict[str, Callable[[Any], bool]] = {
    "best_of": either(1),
    "suffix": either(""),
    "use_beam_search": either(False),
    "beam_width": either(1),
    "length_penalty": either(1, 1.0),
    "early_stopping": either(False),
    "modalities": either(["text"]),
    "images": either([]),
    "functions": either([]),
    "service_tier": either("auto", "default", "flex", "priority", "scale"),
    "prediction": lambda value: isinstance(value, dict),
    "cache_prompt": either(True),
    "web_search_options": either({}),
    "store": either(False),
    "verbosity": either("low", "medium", "high"),
    "metadata": lambda value: isinstance(value, dict),
    "safety_identifier": lambda value: isinstance(value, str),
    "client_metadata": lambda value: isinstance(value, dict),
    "extra_body": either({}),
    "guided_decoding_backend": lambda value: isinstance(value, str),
    "typical_p": either(1, 1.0),
    "tfs_z": either(1, 1.0),
    "top_a": either(0, 0.0),
    "mirostat": either(0),
    "dry_multiplier": either(0, 0.0),
    "xtc_probability": either(0, 0.0),
    "dynatemp_range": either(0, 0.0),
    "n_keep": either(0),
    "id_slot": either(-1),
    "detokenize": either(True),
    "return_token_ids": either(False),
    "timings_per_token": either(False),
    "include_reasoning": either(True),
}
"""Checks for ignored parameters: each is accepted only with a value that changes nothing."""


OTHER_NAMES = {"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens",
               "include_stop_str_in_output": "include_stop"}  # fmt: skip
"""Names that llama-server, Ollama and vLLM have for parameters of this server."""
MESSAGE_NOTES = frozenset(
    ("id", "created", "created_at", "timestamp", "metadata", "model", "usage", "status", "phase", "citations",
     "signature", "extra_content", "reasoning_opaque")
)  # fmt: skip
"""Fields in which clients keep for themselves where a message came from: they say nothing of the prompt."""
FUNCTION_KIND = "function"


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """A body with our names for the parameters of other servers; a seed of -1 asks for any, and -1 tokens for all that
    there is room for."""
    made = {OTHER_NAMES.get(name, name) if OTHER_NAMES.get(name) not in data else name: v for name, v in data.items()}
    if type(made.get("seed")) is int and made["seed"] == -1:
        del made["seed"]
    for name in made.keys() & {"max_tokens", "max_completion_tokens"}:
        if type(made[name]) is int and made[name] == -1:
            made[name] = UNLIMITED_TOKENS
    return made


UNLIMITED_TOKENS = 2**31 - 1
"""Tokens of an answer that ends where the context does."""


def permitted(tools: Any, choice: Any) -> tuple[Any, Any]:
    """Tools and choice without `allowed_tools`, which names those that may be called: the others are left out. In the
    layout of the chat and of the responses API; what is not laid out so comes back as it is. Raises ValueError for a
    name that is not among the tools."""
    if not isinstance(choice, dict) or choice.get("type") != ALLOWED or not isinstance(tools, list):
        return tools, choice
    inner = choice.get(ALLOWED, choice)
    named = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(named, list) or len(named) > MOST_TOOLS or inner.get("mode") not in ("auto", "required"):
        raise ValueError('tool_choice of type allowed_tools needs mode, "auto" or "required", and tools, a list.')
    have, want = [name_of(each) for each in tools], {name_of(each) for each in named} - {None}
    if missing := sorted(want - {*have}, key=str):
        raise ValueError(f"tool_choice allows {str(missing[0])[:64]!r}, which is not among the tools.")
    if not want:
        if inner["mode"] == "required":
            raise ValueError("tool_choice requires a call, but names no function that may be called.")
        return [], "none"
    return [each for each, name in zip(tools, have, strict=True) if name in want], inner["mode"]


def name_of(tool: Any) -> Any:
    """Name of a function in either API; None for another tool."""
    if not isinstance(tool, dict) or tool.get("type") != FUNCTION_KIND:
        return None
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


ALLOWED = "allowed_tools"


def without_notes(message: Any) -> Any:
    """A message without its client's notes on it."""
    if not isinstance(message, dict) or not message.keys() & MESSAGE_NOTES:
        return message
    return {name: value for name, value in message.items() if name not in MESSAGE_NOTES}


def as_text(part: Any) -> Any:
    """A part of a message; a refusal of an earlier answer as the text that it is."""
    if isinstance(part, dict) and part.keys() == {"type", "refusal"} and part["type"] == "refusal":
        return {"type": "text", "text": part["refusal"]}
    return part


def other_kinds(tools: Iterable[Mapping[str, Any]]) -> str:
    """Kinds of the tools that are no functions, as an answer names them."""
    return ", ".join(dict.fromkeys(str(each.get("type"))[:40] for each in tools if each.get("type") != FUNCTION_KIND))


def told_left_out(kinds: str) -> dict[str, Any]:
    """What an answer says of tools that are not served."""
    return {"metadata": {"tools_left_out": kinds}} if kinds else {}


def functions_alone(data: Any) -> tuple[Any, str]:
    """(A chat body without the tools that run elsewhere, their kinds.) What is wrong with the body otherwise stays
    in it. Raises ValueError where such a tool must be called."""
    tools = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        return data, ""
    given = data.get("tool_choice")
    tools, chosen = permitted(tools, given)
    if chosen is not given:
        data = {**data, "tools": tools, "tool_choice": chosen if tools else None}
    others = [each for each in tools if elsewhere(each)]
    if not others:
        return data, ""
    kept, kinds, choice = [each for each in tools if not elsewhere(each)], other_kinds(others), data.get("tool_choice")
    if elsewhere(choice):
        kind = choice["type"][:40]
        raise ValueError(f"tool_choice names a tool of type {kind!r}, but only functions are served.")
    if choice == "required" and not kept:
        raise ValueError(
            f"tool_choice is required, but the tools are of type {kinds!r}, and only functions are served."
        )
    left = {name: value for name, value in data.items() if name != "tools" and (kept or name not in WITH_TOOLS)}
    return {**left, **({"tools": kept} if kept else {})}, kinds


def elsewhere(tool: Any) -> bool:
    """A tool, or the choice of one, that is no function."""
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != FUNCTION_KIND


MOST_TOOLS = 128
"""Tools of one request."""
WITH_TOOLS = ("tool_choice", "parallel_tool_calls")
"""Fields that say something of tools alone."""
