"""adapter_config.json of PEFT's directories: rank, alpha, and the modules that an adapter is for.

What would change the arithmetic and is not computed here (DoRA, biases, trained embeddings) is refused by name.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from re import _parser as re_parser  # type: ignore[attr-defined]
from typing import Any, TypeGuard

from paceline.core.errors import CheckpointError, RefusalError

MAX_LORA_CONFIG_BYTES = 1 << 20
MAX_LORA_PATTERN_CHARS, MAX_MODULE_NAME_CHARS = 400, 200
MAX_LORA_PATTERNS, MAX_REPEATING_PATTERNS = 1024, 32
"""Most entries of `rank_pattern` and of `alpha_pattern`, and how many of them may repeat a character."""
MAX_ENTRY_REPEATS, MAX_WISH_REPEATS = 2, 4
"""Most repeats in such an entry, and in the expression of `target_modules` or `exclude_modules`: to match a name of n
characters takes a time that grows with n to this power."""
MAX_PATTERN_WAYS = 64
"""Most ways in which the alternatives of a pattern may match the same text."""
ALL_EXPERTS = re.compile(r"\bexperts\.[a-z_]+$")
"""Name of a parameter of all experts of a layer."""
SINGLE_CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY")
"""What of a regular expression stands for one character."""
PLAIN_LORA_KEYS = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "target_modules", "exclude_modules",
    "target_parameters",
    "layers_to_transform", "layers_pattern", "base_model_name_or_path", "lora_dropout", "inference_mode", "task_type",
    "auto_mapping", "revision", "peft_version", "init_lora_weights", "loftq_config", "eva_config", "corda_config",
    "megatron_core", "qalora_group_size", "ensure_weight_tying", "lora_ga_config", "velora_config",
})  # fmt: skip
"""Keys of a config that are used, or say nothing of the arithmetic. Any other that is set is refused."""
CHANGED_BASES = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to begin a training that change the weights below the adapter."""
KEPT_BASES = ("gaussian", "eva", "orthogonal", "mica", "true", "false")
"""Ways that leave them alone."""


def read_lora_config(path: Path) -> dict[str, Any]:
    """adapter_config.json, its lists of modules and of layers as sets. RefusalError for what is not computed here."""
    file = path / "adapter_config.json"
    try:
        if file.exists() and not file.is_file():
            raise CheckpointError(f"{file} is no file; give a directory that PEFT has saved.")
        if file.stat().st_size > MAX_LORA_CONFIG_BYTES:
            raise CheckpointError(f"{file} is too large for a config.")
        config = json.loads(file.read_text())
    except FileNotFoundError:
        model = "it is a model: a fine-tune of the served one is given as --zoo NAME=DIRECTORY"
        other = "give a directory that PEFT has saved, or a GGUF adapter"
        raise CheckpointError(
            f"{path} has no adapter_config.json; {model if (path / 'config.json').exists() else other}."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}).") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise RefusalError(f"{path} is an adapter of type {str(kind)[:40]!r}, but LORA alone is served.")
    _refuse(path, config)
    _check_types(file, config)
    layers, roots = config.get("layers_to_transform"), config.get("layers_pattern")
    lists = {key: config.get(key) for key in ("target_modules", "exclude_modules", "target_parameters")}
    lists["layers_to_transform"] = [layers] if isinstance(layers, int) else layers
    named = {key: frozenset(value) for key, value in lists.items() if isinstance(value, list)}
    return config | named | {"layers_pattern": [roots] if isinstance(roots, str) else roots}


def _refuse(path: Path, config: Mapping[str, Any]) -> None:
    """RefusalError for what changes the arithmetic and is not computed."""
    if config.get("use_dora"):
        raise RefusalError(f"{path} uses DoRA, which is not served; merge it into the model.")
    if config.get("modules_to_save"):
        raise RefusalError(
            f"{path} replaces whole modules (modules_to_save: {config['modules_to_save']}), which is not served; merge "
            "it into the model."
        )
    if config.get("bias", "none") != "none":
        raise RefusalError(f"{path} has trained biases (bias: {config['bias']!r}), which are not served; merge it.")
    begun = config.get("init_lora_weights")
    kind = str(begun).lower()
    if kind.startswith(CHANGED_BASES):
        raise RefusalError(
            f"{path} was begun with {begun!r}, which changes the model below it; save it with "
            "path_initial_model_for_weight_conversion, or merge it."
        )
    if begun is not None and kind not in KEPT_BASES:
        raise RefusalError(
            f"{path} was begun with {str(begun)[:40]!r}, which is not known here and may change the model below it; "
            "merge it."
        )
    for key, value in config.items():
        if key not in PLAIN_LORA_KEYS | {"use_dora", "modules_to_save", "bias"} and value:
            raise RefusalError(f"{path} sets {key} in adapter_config.json, which is not served; merge it.")


def _check_types(file: Path, config: Mapping[str, Any]) -> None:
    """CheckpointError for a key that is used and holds nothing that can be."""

    def expect(key: str, good: bool, what: str) -> None:
        if not good:
            raise CheckpointError(f"{file} has {key}: {str(config.get(key))[:40]!r}, but {what} is expected.")

    expect("use_rslora", isinstance(config.get("use_rslora"), bool | None), "true or false")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        expect(key, _number(value) and 0 < value < 1e9, "a positive number")
    for key in ("target_modules", "exclude_modules"):
        wish = config.get(key)
        named = isinstance(wish, list) and all(isinstance(name, str) for name in wish)
        expect(key, named or isinstance(wish, str | None), "a list of names or an expression")
        most = (
            f"a list of names, or an expression that repeats only single characters, {MAX_WISH_REPEATS} times at most, "
            f"has at most {MAX_LORA_PATTERN_CHARS} characters and matches a text in at most {MAX_PATTERN_WAYS} ways,"
        )
        expect(key, not isinstance(wish, str) or served(wish, MAX_WISH_REPEATS), most)
    wish = config.get("target_parameters")
    named = isinstance(wish, list) and all(isinstance(name, str) for name in wish)
    expect("target_parameters", named or wish is None, "a list of names")
    layers = config.get("layers_to_transform")
    layers = layers if isinstance(layers, list) else [0 if layers is None else layers]
    expect("layers_to_transform", all(type(layer) is int for layer in layers), "a list of whole numbers")
    roots = config.get("layers_pattern") or []
    roots = [roots] if isinstance(roots, str) else roots
    plain = isinstance(roots, list) and all(isinstance(it, str) and re.fullmatch(r"[\w.]{1,99}", it) for it in roots)
    expect("layers_pattern", plain, "a name, or a list of names,")
    if roots and config.get("layers_to_transform") is None:
        raise CheckpointError(f"{file} has layers_pattern without layers_to_transform; save the adapter again.")
    if isinstance(config.get("target_modules"), str) and config.get("layers_to_transform") is not None:
        raise CheckpointError(
            f"{file} has layers_to_transform next to an expression in target_modules, and PEFT takes it with a list of "
            "names alone; put the layers into the expression."
        )
    if not config.get("target_modules") and not config.get("target_parameters"):
        raise CheckpointError(
            f"{file} names no modules that the adapter is for; list them in target_modules, as PEFT saves them."
        )
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        expect(key, isinstance(patterns, dict), "an object")
        many = f"an object of at most {MAX_LORA_PATTERNS:,} entries"
        expect(key, len(patterns) <= MAX_LORA_PATTERNS, many)
        for pattern, value in patterns.items():
            _check_entry(key, pattern, value)
        repeating = sum(name_pattern(pattern, MAX_ENTRY_REPEATS)[1] > 0 for pattern in patterns)
        expect(
            key,
            repeating <= MAX_REPEATING_PATTERNS,
            f"at most {MAX_REPEATING_PATTERNS} entries that repeat characters",
        )


def _check_entry(key: str, pattern: str, value: object) -> None:
    """CheckpointError for an entry of `rank_pattern` or `alpha_pattern` that is not served."""
    if not _number(value) or not served(pattern, MAX_ENTRY_REPEATS):
        raise CheckpointError(
            f"adapter_config.json has {key} {pattern[:80]!r}: {str(value)[:40]!r}, which is none that is served: a "
            f"pattern may repeat a single character, {MAX_ENTRY_REPEATS} times at most, and a value is a number."
        )


def served(pattern: str, most: int) -> bool:
    """Is it a pattern of module names that takes little time?"""
    try:
        name_pattern(pattern, most)
        return True
    except (re.error, ValueError, OverflowError, RecursionError):
        return False


def _number(value: object) -> TypeGuard[int | float]:
    """Is it a number that a float can hold?"""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def by_pattern(config: Mapping[str, Any], key: str, module: str, default: float) -> float:
    """Rank or alpha of a module of the model by PEFT's rule: the first pattern that matches the end of its name."""
    for pattern, value in (config.get(key) or {}).items():
        if name_pattern(pattern, MAX_ENTRY_REPEATS)[0].match(module[-MAX_MODULE_NAME_CHARS:]):
            return float(value)
    return default


@lru_cache(4096)
def name_pattern(pattern: str, most: int) -> "tuple[re.Pattern[str], int]":
    """A pattern of module names, as PEFT reads it, and how many characters it repeats. ValueError for one that may take
    long, as (a+)+b does: only single characters and sets of them may repeat, at most `most` in all. re.error for one
    that is none."""
    if len(pattern) > MAX_LORA_PATTERN_CHARS:
        raise ValueError("it is too long")
    made = re.compile(rf"(?:.*\.)?(?:{pattern})$")
    repeats, ways = _cost(re_parser.parse(pattern))
    if repeats > most or ways > MAX_PATTERN_WAYS:
        raise ValueError("it may take long")
    return made, repeats


def _cost(parts: Iterable[tuple[Any, Any]]) -> tuple[int, int]:
    """(repeats, ways) of a part of a pattern."""
    repeats, ways = 0, 1
    for name, value in parts:
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            if value[1] <= 1:  # there or not
                more, times = _cost(value[2])
                times += 1
            elif len(value[2]) == 1 and str(value[2][0][0]) in SINGLE_CHARACTERS:
                more, times = 1, 1
            else:
                raise ValueError("it may take long")
        elif kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            more, times = _cost(value[-1])
        elif kind == "BRANCH":
            costs = [_cost(branch) for branch in value[1]]
            more, times = max(it for it, _ in costs), _alike(value[1]) * max(it for _, it in costs)
        elif kind in (*SINGLE_CHARACTERS, "AT"):
            more, times = 0, 1
        else:
            raise ValueError("it may take long")
        repeats, ways = repeats + more, ways * times
    return repeats, ways


def _alike(branches: Sequence[Sequence[tuple[Any, Any]]]) -> int:
    """How many alternatives can match the same text at most. Different letters at their beginnings part them."""
    heads = []
    for branch in branches:
        letters = list(takewhile(lambda part: str(part[0]) == "LITERAL", branch))
        heads.append((tuple(letter for _, letter in letters), len(letters) == len(branch)))
    most = 0
    for head, whole in heads:
        shorter = sum(head[: len(other)] == other for other, _ in heads)
        longer = sum(len(other) > len(head) and other[: len(head)] == head and not (whole and ends)
                     for other, ends in heads)  # fmt: skip
        most = max(most, shorter + longer)
    return most


def parameter_of(module: str) -> str:
    """The parameter that an adapter of this module changes: of all experts, its name is the parameter's."""
    return module if ALL_EXPERTS.search(module) else f"{module}.weight"


def left_out(config: Mapping[str, Any], module: str) -> str | None:
    """The key of a config by which PEFT leaves a module of the model alone; None where none does."""
    targets, excluded = config.get("target_modules"), config.get("exclude_modules")
    if parameters := config.get("target_parameters"):
        if any(tail in parameters for tail in tails(parameter_of(module))):
            return None
        if not targets:
            return "target_parameters"
    if ALL_EXPERTS.search(module):
        return "target_parameters"
    if not _names(targets, module):
        return "target_modules"
    if excluded and _names(excluded, module):
        return "exclude_modules"
    layers = config.get("layers_to_transform")
    whole = isinstance(targets, frozenset) and module in targets  # PEFT asks for no layer then
    return "layers_to_transform" if layers and not whole and _layer_below(config, module) not in layers else None


def _layer_below(config: Mapping[str, Any], module: str) -> int:
    """The layer that `layers_to_transform` means, below one of `layers_pattern`; -1 without one."""
    if not (roots := config.get("layers_pattern")):
        return layer_of(module)
    found = (re.match(rf"(?:^|.*?\.){root}\.(\d+)\.", module) for root in roots)
    return next((int(match[1]) for match in found if match), -1)


def _names(wish: object, module: str) -> bool:
    """Do names, or an expression, of a config mean this module?"""
    if isinstance(wish, frozenset):
        return any(tail in wish for tail in tails(module))
    if str(wish).lower() == "all-linear":
        return True
    return re.fullmatch(str(wish), module[-MAX_MODULE_NAME_CHARS:]) is not None


def tails(module: str) -> list[str]:
    """A module's name, and what is left of it after each dot."""
    parts = module.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def layer_of(name: str) -> int:
    """The number of the layer in a module's name; -1 without one."""
    found = re.search(r"\.(?:layers|h)\.(\d+)\.", f".{name}")
    return int(found[1]) if found else -1
