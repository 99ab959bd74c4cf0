"""What the model card states: held-out loss, draft/target agreement, greedy tau."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from data import Document
from tokenizer import END, PAD
from torch import Tensor
from transformers import LlamaForCausalLM


@torch.no_grad()
def loss(model: LlamaForCausalLM, documents: list[Document]) -> float:
    """Mean nats per predicted token, each document by itself."""
    total, count = 0.0, 0
    for document in documents:
        ids = torch.tensor([document])
        total += float(F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum"))
        count += len(document) - 1
    return total / count


@torch.no_grad()
def agreement(target: LlamaForCausalLM, draft: LlamaForCausalLM, documents: list[Document]) -> float:
    """Share of positions where both models have the same most likely next token."""
    same, count = 0, 0
    for document in documents:
        ids = torch.tensor([document])
        same += int((target(ids).logits.argmax(-1) == draft(ids).logits.argmax(-1)).sum())
        count += len(document)
    return same / count


@torch.no_grad()
def complete(model: LlamaForCausalLM, prompts: list[Document], new_tokens: int) -> list[Document]:
    """Greedy continuations of left-padded prompts; each is prompt + answer, ended by <|end|> if it came."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = (ids != PAD).long()
    generate: Callable[..., Tensor] = model.generate  # type: ignore[assignment, misc]
    out = generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)
    answers = [row[width:].tolist() for row in out]
    return [p + a[: a.index(END) + 1 if END in a else None] for p, a in zip(prompts, answers, strict=True)]


@torch.no_grad()
def chain(draft: LlamaForCausalLM, prefix: Document, length: int) -> Document:
    ids = list(prefix)
    for _ in range(length):
        ids.append(int(draft(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prefix) :]


def greedy_tau(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: list[Document],
    length: int = 4,
    new_tokens: int = 160,
) -> float:
    """Tokens per target step (accepted + 1) of greedy chains of `length` against the target's own answer."""
    tokens, steps = 0, 0
    for prompt in prompts:
        text = complete(target, [prompt], new_tokens)[0]
        at = len(prompt)
        while at < len(text):
            guesses = zip(chain(draft, text[:at], length), text[at:], strict=False)
            accepted = next((i for i, (guess, token) in enumerate(guesses) if guess != token), length)
            at = min(at + accepted + 1, len(text))
            steps += 1
        tokens += len(text) - len(prompt)
    return tokens / steps
