"""Perplexity on held-out texts: what rounding the weights costs in quality.

    perplexity = exp(-(sum of log p(token | all tokens before it)) / tokens)       natural log, summed in float64

A text is a prompt as the benchmark sends it, followed by the reference answer of its line where there is one. Then only
the answer's tokens count, given the prompt; else all tokens but the first. The probabilities are of the raw logits that
the engine computes in its own passes, so they are those of the very model that generates.
"""

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import exp, fsum, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from paceline.bench.files import save_json, versions
from paceline.bench.prompts import encode, read_prompts, read_text
from paceline.bench.report import machine
from paceline.core.errors import InputError
from paceline.core.params import SamplingParams
from paceline.engine.build import build
from paceline.engine.loop import Engine
from paceline.engine.options import Options
from paceline.engine.pair import paths
from paceline.engine.text import Text
from paceline.model.linear import STORED

ANSWER_FIELDS = ("answer", "canonical_solution")
"""GSM8K, HumanEval."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, seed=0).resolve({})
Progress = Callable[[int, int, str], None]
"""(texts done, texts in all, precision)"""


class ScoredText(NamedTuple):
    prompt: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity at each precision over the same tokens, the requested precision first. `cut`: number of texts longer
    than `longest` tokens (the context less the one token that the engine keeps free), which were truncated to it."""

    texts: int
    tokens: int
    cut: int
    longest: int
    values: dict[str, float]
    """Perplexities, as in {"int8": 18.92, "bfloat16": 18.91}; one entry without quantisation."""

    @property
    def ratio(self) -> float | None:
        """Quantised over unquantised."""
        first, *rest = self.values.values()
        return first / rest[0] if rest else None

    def summary(self) -> str:
        """For a terminal."""
        values = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        change = "" if self.ratio is None else f" ({(self.ratio - 1) * 100:+.2f} %)"
        cut = f" Cut to {self.longest:,} tokens: {plural(self.cut, 'text')}." if self.cut else ""
        return f"Perplexity over {plural(self.texts, 'text')}, {plural(self.tokens, 'token')}: {values}{change}.{cut}"

    def write(self, path: Path, options: Options) -> None:
        """As JSON with what is needed to repeat it. Raises InputError when the file cannot be written."""
        own = {**asdict(self), "ratio": self.ratio}
        args = {**asdict(options), "token": None}
        document = {"machine": machine(options.device), "versions": dict(versions()), "args": args, "perplexity": own}
        save_json(path, document)


def plural(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def perplexity(
    options: Options, path: Path, limit: int, progress: Progress = lambda done, total, what: None
) -> Perplexity:
    """Measure the first `limit` texts of `path`: as the options say and, once that model is released, in their dtype.
    Drafts play no part. Raises PacelineError for what cannot be served."""
    items = read_items(path, limit)
    own = replace(options, model=paths(options)[0], draft=None, drafter="none", max_requests=1, prefix_cache=False)
    found = [measure(own, items, progress)]
    if options.dtype not in found[0].values:
        gc.collect()  # frames of the libraries' lazy imports hold the first model in a cycle
        found.append(measure(replace(own, quantize="none", kv_dtype=None), items, progress))
    return replace(found[0], values={name: value for it in found for name, value in it.values.items()})


def measure(options: Options, items: list[ScoredText], progress: Progress) -> Perplexity:
    """One model, which nothing but garbage refers to when this returns."""
    engine, text = build(options)
    name, longest = form_of(options, engine), engine.model.max_len - 1
    if options.kv_dtype not in (None, "auto", options.dtype):
        name += f" with K/V in {options.kv_dtype}"
    cut, losses = 0, list[float]()
    for done, item in enumerate(items):
        progress(done, len(items), name)
        ids, first = tokens_of(text, item)
        cut += len(ids) > longest
        losses.extend(losses_of(engine, ids[:longest], first))
    if not losses:
        raise InputError(f"Within {longest} tokens no text has one to score; use longer texts or a longer context.")
    loss = fsum(losses) / len(losses)
    if not isfinite(loss):
        raise InputError(f"The {name} model's logits are not finite; use another dtype, such as bfloat16.")
    return Perplexity(len(items), len(losses), cut, longest, {name: exp(loss)})


def form_of(options: Options, engine: Engine) -> str:
    """Name of the form that the weights have in memory."""
    if options.quantize not in (None, "none"):
        return str(options.quantize)
    packing = getattr(engine.model, "packing", None)
    return "own bits" if packing is not None and packing.name == STORED else options.dtype


def tokens_of(text: Text, item: ScoredText) -> tuple[list[int], int]:
    """(token ids, index of the first that is scored). The answer is tokenised on its own, with no end after it."""
    prompt = encode(text, item.prompt)
    if item.answer is None:
        return prompt, 1
    return [*prompt, *text.tokenizer.encode(item.answer, add_special_tokens=False)], max(1, len(prompt))


def losses_of(engine: Engine, ids: list[int], first: int) -> list[float]:
    """-log p of each token from `first` on, in passes of at most the engine's row budget."""
    (request,) = engine.submit(ids, PARAMS)
    while engine.busy:
        engine.step()
    return [-entry.logprob for entry in request.prompt_logprobs[first:] if entry is not None]


def read_items(path: Path, limit: int) -> list[ScoredText]:
    """The first `limit` prompts of a file of JSON lines, with their answers. Raises InputError naming the line."""
    if limit < 1:
        raise InputError(f"num_prompts is {limit}, but it must be at least 1.")
    prompts = read_prompts(path, limit)
    lines = [(at, line) for at, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    return [
        ScoredText(prompt, answer(json.loads(line), f"{path}, line {at}")) for prompt, (at, line) in zip(prompts, lines)
    ]


def answer(entry: dict[str, Any], place: str) -> str | None:
    found = next((entry[name] for name in ANSWER_FIELDS if name in entry), None)
    if found is not None and (not isinstance(found, str) or not found):
        raise InputError(f"{place} has an answer that is not a text; give a string that is not empty, or leave it out.")
    return found
