"""The slow twin of `Sampler`: one row at a time, plain Python and plain PyTorch, as the definitions read."""

import math

import regex
import torch
from torch import Tensor

from paceline.core.noise import mix
from paceline.core.request import Request

INF = float("inf")


def follow(pattern: str, output: list[int], letters: str, eos: frozenset[int]) -> set[int]:
    """The tokens that a regular expression allows next, token i being the text letters[i]."""
    text = "".join(letters[token] for token in output)
    if eos & {*output} or not regex.fullmatch(pattern, text, partial=True):
        return set(eos)
    ends = eos if regex.fullmatch(pattern, text) else frozenset()
    longer = {i for i, letter in enumerate(letters) if regex.fullmatch(pattern, text + letter, partial=True)}
    return longer - eos | ends


def processed(
    request: Request, output: list[int], logits: Tensor, words: list[tuple[int, ...]], letters: str = ""
) -> Tensor:
    """The logits [V] before temperature, for the text prompt + output."""
    p, z = request.params, logits.clone()
    if p.grammar is not None:
        for token in set(range(len(z))) - follow(p.grammar.text, output, letters, request.eos):
            z[token] = -INF
    for token in range(len(z)):
        if p.allowed_tokens is not None and token not in p.allowed_tokens:
            z[token] = -INF
    for word in words:
        if len(output) >= len(word) - 1 and tuple(output[len(output) - len(word) + 1 :]) == word[:-1]:
            z[word[-1]] = -INF
    if len(output) < p.min_tokens:
        for token in {*p.stop_token_ids, *(() if p.ignore_eos else request.eos)}:
            z[token] = -INF
    for token, bias in (p.logit_bias or {}).items():
        z[token] += bias
    for token in {*request.prompt, *output}:
        r = p.repetition_penalty or 1.0
        z[token] = z[token] / r if z[token] > 0 else z[token] * r
    for token in set(output):
        z[token] -= p.presence_penalty + p.frequency_penalty * output.count(token)
    for function in p.processors:
        z = function(request.prompt, output, z)
    return z


def scores(
    request: Request, output: list[int], logits: Tensor, words: list[tuple[int, ...]], letters: str = ""
) -> Tensor:
    """What `Sampler.scores` says of one row."""
    p, z = request.params, processed(request, output, logits, words, letters)
    if p.temperature == 0 or z.max() == -INF:
        return z
    z = z / torch.tensor(1.0 if p.temperature is None else p.temperature, dtype=z.dtype)
    if p.min_p:
        z[z < z.max() + torch.tensor(p.min_p, dtype=z.dtype).log()] = -INF
    if p.top_k:
        z[z < z.sort(descending=True).values[: p.top_k][-1]] = -INF
    if p.top_p is not None and p.top_p < 1:
        exact = z.to(torch.float64).log_softmax(-1)
        mass, floor = 0.0, -INF
        for value in exact.sort(descending=True).values.tolist():
            mass, floor = mass + math.exp(value), value
            if mass >= p.top_p:
                break
        z[exact < floor] = -INF
    return z.log_softmax(-1)


def draw(request: Request, row: Tensor, key: int) -> int:
    """argmax of log p + Gumbel noise, the noise in Python integers and floats."""
    best, winner = -INF, -1
    for token, score in enumerate(row.tolist()):
        bits = mix(key + (token + 1) * 0x9E3779B97F4A7C15) >> 12
        noise = 0.0 if request.params.temperature == 0 else -math.log(-math.log((bits + 0.5) * 2.0**-52))
        if score + noise > best:
            best, winner = score + noise, token
    return winner
