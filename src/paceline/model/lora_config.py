"""adapter_config.json of PEFT's directories: rank, alpha, and the modules that an adapter is for.

What would change the arithmetic and is not computed here (DoRA, biases, trained embeddings) is refused by name.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
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
    layers = config.get("layers_to_transform")
    lists = {key: config.get(key) for key in ("target_modules", "exclude_modules", "target_parameters")}
    lists["layers_to_transform"] = [layers] if isinstance(layers, int) else layers
    return config | {key: frozenset(value) for key, value in lists.items() if isinstance(value, list)}


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
    wish = config.get("target_parameters")
    named = isinstance(wish, list) and all(isinstance(name, str) for name in wish)
    expect("target_parameters", named or wish is None, "a list of names")
    layers = config.get("layers_to_transform")
    layers = layers if isinstance(layers, list) else [0 if layers is None else layers]
    expect("layers_to_transform", all(type(layer) is int for layer in layers), "a list of whole numbers")
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
    try:
        if not _number(value):
            raise TypeError("it is no number")
        float(value)
        name_pattern(pattern, MAX_ENTRY_REPEATS)
    except (re.error, TypeError, ValueError, OverflowError, RecursionError):
        raise CheckpointError(
            f"adapter_config.json has {key} {pattern[:80]!r}: {str(value)[:40]!r}, which is none that is served: a "
            f"pattern may repeat a single character, {MAX_ENTRY_REPEATS} times at most, and a value is a number."
        ) from None


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
    made, repeats = re.compile(rf"(?:.*\.)?(?:{pattern})$"), 0
    parts = list(re_parser.parse(pattern))
    while parts:
        name, value = parts.pop()
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            repeats += 1
            if repeats > most or len(value[2]) != 1 or str(value[2][0][0]) not in SINGLE_CHARACTERS:
                raise ValueError("it may take long")
        elif kind == "SUBPATTERN":
            parts += list(value[3])
        elif kind == "BRANCH":
            parts += [each for branch in value[1] for each in branch]
        elif kind not in (*SINGLE_CHARACTERS, "AT"):
            raise ValueError("it may take long")
    return made, repeats


def parameter_of(module: str) -> str:
    """The parameter that an adapter of this module changes: of all experts, its name is the parameter's."""
    return module if ALL_EXPERTS.search(module) else f"{module}.weight"


def left_out(config: Mapping[str, Any], module: str) -> str | None:
    """The key of a config by which PEFT leaves a module of the model alone; None where none does, or where an
    expression may take long to match."""
    layers, excluded = config.get("layers_to_transform"), config.get("exclude_modules")
    if parameters := config.get("target_parameters"):
        if any(tail in parameters for tail in tails(parameter_of(module))):
            return None
        if not config.get("target_modules"):
            return "target_parameters"
    if ALL_EXPERTS.search(module):
        return "target_parameters"
    if config.get("target_modules") and _names(config["target_modules"], module) is False:
        return "target_modules"
    if excluded and _names(excluded, module):
        return "exclude_modules"
    return "layers_to_transform" if layers and layer_of(module) not in layers else None


def names_all(config: Mapping[str, Any]) -> bool:
    """Can it be said of each module whether the config means it?"""
    wishes = [config.get("target_modules"), config.get("exclude_modules")]
    return bool(wishes[0] or config.get("target_parameters")) and all(
        wish is None or _names(wish, "") is not None for wish in wishes
    )


def _names(wish: object, module: str) -> bool | None:
    """Do names, or an expression, of a config mean this module? None for an expression that may take long to match."""
    if isinstance(wish, frozenset):
        return any(tail in wish for tail in tails(module))
    if wish == "all-linear":
        return True
    try:
        name_pattern(str(wish), MAX_WISH_REPEATS)
        return re.fullmatch(str(wish), module[-MAX_MODULE_NAME_CHARS:]) is not None
    except (re.error, ValueError, OverflowError, RecursionError):
        return None


def tails(module: str) -> list[str]:
    """A module's name, and what is left of it after each dot."""
    parts = module.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]


def layer_of(name: str) -> int:
    """The number of the layer in a module's name; -1 without one."""
    found = re.search(r"\.(?:layers|h)\.(\d+)\.", f".{name}")
    return int(found[1]) if found else -1
