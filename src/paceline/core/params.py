"""What a user asks for: `SamplingParams`, validated on construction, the same words in Python, CLI, JSON and HTTP."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError, RefusalError
from paceline.core.grammar import Grammar

if TYPE_CHECKING:
    from torch import Tensor

LogitsFn = Callable[[Sequence[int], Sequence[int], "Tensor"], "Tensor"]
"""(prompt ids, output ids of this path, logits [V]) -> logits [V]. Must be a pure function."""

MOST_STOP = 8192
"""Characters of all stop strings together: each token is looked at with them."""
MOST_BAD_TEXT = 65_536
"""Characters of all texts of bad_words together: each is spelled in two ways before its tokens are counted."""
SUPPRESSED = "suppress_tokens"
"""What a generation config calls the ids that are never drawn."""
MOST_PRIORITY = 100
"""Bounds how long the least important can wait."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled, stopped and sped up.

    `None` for temperature, top_k, top_p, min_p, repetition_penalty means: the checkpoint's
    generation_config.json, else 1.0, off, off, off, off. Raises InputError for values out of range.
    """

    n: int = 1
    """Samples of the prompt, each with noise of its own."""
    temperature: float | None = None
    """0: greedy."""
    top_k: int | None = None
    """Keep the k most probable tokens (0: all)."""
    top_p: float | None = None
    """Keep the smallest set whose probability reaches top_p, in (0, 1]."""
    min_p: float | None = None
    """Drop tokens below min_p times the most probable, in [0, 1)."""
    repetition_penalty: float | None = None
    """> 0; divides positive and multiplies negative logits of tokens seen in prompt or output."""
    presence_penalty: float = 0.0
    """In [-2, 2]; subtracted once from tokens seen in the output."""
    frequency_penalty: float = 0.0
    """In [-2, 2]; subtracted once per occurrence in the output."""
    grammar: Grammar | None = None
    """What the whole output must look like."""
    logit_bias: Mapping[int, float] | None = None
    """{token id: number}, added to the logits before everything else."""
    allowed_tokens: Sequence[int] | None = None
    """Only these ids can be drawn."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Texts (or id sequences) that must not be completed."""
    processors: Sequence[LogitsFn] = ()
    """Custom processors, applied in order after penalties and before temperature."""
    logprobs: int | None = None
    """Report each token's log-probability, and those of this many most probable tokens (0: only its own)."""
    prompt_logprobs: int | None = None
    """As logprobs, for the prompt's tokens, by the model's own distribution."""
    stop: str | Sequence[str] = ()
    """A text or texts that end the output where they are complete; they are cut off."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output as the end of sequence does."""
    include_stop: bool = False
    """Keep the stop string in the text."""
    min_tokens: int = 0
    """Minimum number of output tokens: nothing ends the output earlier."""
    max_tokens: int | None = None
    """None: as many as context and cache hold."""
    ignore_eos: bool = False
    """Go on after the end of sequence."""
    seed: int | None = None
    """None: a fresh 64-bit one, returned with the result."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    drafter: str | None = None
    """Wish: the engine's default when None; `none` for plain decoding."""
    max_nodes: int | None = None
    """Wish: at most this many drafted tokens a step."""
    verifier: str | None = None
    """Wish: `exact` when None."""
    priority: int = 0
    """Lower is served first. Needs an engine with order="priority"."""
    deadline_ms: float | None = None
    """When the answer should be complete, counted from its arrival. Needs an engine with order="deadline"."""
    user: str = ""
    """User that the request belongs to: order="fair" shares between users. The text does not depend on it."""
    returns: int | None = None
    """Tokens of the prompt that are asked for again soon, as the client says; more than it has: the answer, too. What
    is forgotten when room is needed depends on it, the text does not."""
    adapter: str = ""
    """Name of the adapter that the model is computed with; empty: none."""
    tenant: str = ""
    """Requests of different tenants share no cached prefix, and drafters learn from each tenant's texts apart."""
    client: str = ""
    """Client that the request came from: clients share the places of running requests evenly, whatever the order. The
    text does not depend on it."""

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, want: str) -> None:
            if not ok:
                raise InputError(f"{name} is {getattr(self, name)!r}, but it must be {want}.")

        def number(name: str) -> float:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{name} is {value!r}, but it must be a number.")
            return float(value)

        if self.temperature is not None:
            check(0 <= number("temperature") < float("inf"), "temperature", "0 (greedy) or a positive number")
        if self.top_p is not None:
            check(0 < number("top_p") <= 1, "top_p", "in (0, 1]; 1 switches it off")
        if self.min_p is not None:
            check(0 <= number("min_p") < 1, "min_p", "in [0, 1); 0 switches it off")
        if self.top_k is not None:
            check(_whole(self.top_k) and self.top_k >= 0, "top_k", "a whole number, 0 for all tokens")
        if self.repetition_penalty is not None:
            penalty = number("repetition_penalty")
            check(0 < penalty < float("inf"), "repetition_penalty", "above 0; 1 switches it off")
        for name in ("presence_penalty", "frequency_penalty"):
            check(-2 <= number(name) <= 2, name, "in [-2, 2]")
        for name, least in (("n", 1), ("min_tokens", 0)):
            check(_whole(getattr(self, name)) and getattr(self, name) >= least, name, f"a whole number >= {least}")
        for name, least in (
            ("max_tokens", 1),
            ("logprobs", 0),
            ("prompt_logprobs", 0),
            ("max_nodes", 0),
            ("returns", 0),
        ):
            value = getattr(self, name)
            check(value is None or (_whole(value) and value >= least), name, f"None or a whole number >= {least}")
        check(self.seed is None or (_whole(self.seed) and 0 <= self.seed < 2**64), "seed", "in [0, 2**64)")
        if self.max_tokens is not None:
            check(self.min_tokens <= self.max_tokens, "min_tokens", f"at most max_tokens ({self.max_tokens})")
        check(self.allowed_tokens is None or len(self.allowed_tokens) > 0, "allowed_tokens", "None or not empty")
        check("" not in self.stops and None not in self.stops, "stop", "texts that are not empty")
        if (size := sum(map(len, self.stops))) > MOST_STOP:
            raise InputError(f"stop has {size} characters in all, but it may have at most {MOST_STOP}; shorten it.")
        for name in ("bad_words", "stop_token_ids"):
            check(not isinstance(getattr(self, name), str), name, "a list, not one text")
        if (size := sum(len(word) for word in self.bad_words if isinstance(word, str))) > MOST_BAD_TEXT:
            raise InputError(
                f"bad_words has {size} characters in all, but it may have at most {MOST_BAD_TEXT}; shorten it."
            )

        bounded = _whole(self.priority) and abs(self.priority) <= MOST_PRIORITY
        check(bounded, "priority", f"a whole number in [-{MOST_PRIORITY}, {MOST_PRIORITY}]")
        if self.deadline_ms is not None:
            check(0 < number("deadline_ms") < float("inf"), "deadline_ms", "None or a positive number of milliseconds")
        for name in ("user", "tenant", "client", "adapter"):
            check(isinstance(getattr(self, name), str), name, "a text")
        check("\x1f" not in self.tenant, "tenant", "a text without control characters")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InputError(f"grammar is of type {type(self.grammar).__name__}, but it must be a Grammar or None.")
        if self.grammar is not None and self.ignore_eos:
            raise RefusalError("grammar and ignore_eos cannot be combined: nothing follows the end of a grammar.")

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def resolve(self, defaults: Mapping[str, Any]) -> "SamplingParams":
        """Fill the five `None`-able sampling fields from a checkpoint's generation config, and forbid the tokens that
        are never drawn by it."""
        temperature = defaults.get("temperature")
        if defaults.get("do_sample") is False:
            temperature = 0.0
        base: dict[str, Any] = {
            "temperature": 1.0 if temperature is None else temperature,
            "top_k": defaults.get("top_k") or 0,
            "top_p": defaults.get("top_p") or 1.0,
            "min_p": defaults.get("min_p") or 0.0,
            "repetition_penalty": defaults.get("repetition_penalty") or 1.0,
        }
        filled = {k: v for k, v in base.items() if getattr(self, k) is None}
        if never := defaults.get(SUPPRESSED):
            filled["logit_bias"] = {**(self.logit_bias or {}), **dict.fromkeys(never, float("-inf"))}
        return replace(self, **filled)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """From JSON-like data; an unknown name is an error, never ignored."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(f"Unknown sampling parameter {unknown[0]!r}; known are {', '.join(sorted(known))}.")
        grammar = values.get("grammar")
        return cls(**values) if grammar is None else cls(**{**values, "grammar": Grammar.of(grammar)})


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
