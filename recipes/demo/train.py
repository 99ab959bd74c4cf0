"""Train the demo pair: tokenizer, target, then a one-layer draft distilled from it. See README.md."""

import argparse
import copy
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import measure
import torch
import torch.nn.functional as F
from data import Document, Question, Source, batches, read_questions, read_stdlib, source_document
from tokenizer import BOS, END, MAX_LENGTH, PAD, train_tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.train.optimizers import Muon

SEED = 1
BATCH, LENGTH = 4, 512
TARGET_STEPS, DRAFT_STEPS = 800, 1200
WARMUP, DECAY_SHARE, SAVE_EVERY = 50, 0.3, 200
MUON_LR, ADAM_LR = 0.02, 0.003
OWN_ANSWERS, OWN_BATCH, OWN_TOKENS = 1024, 64, 160

TAU_QUESTIONS = 20

Loss = Callable[[LlamaForCausalLM, Tensor], Tensor]


def build(layers: int, width: int, heads: int, ffn: int, vocab: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config)


def next_token_loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    logits = model(ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Forward KL(target || draft) in nats per token, over every position."""

    def loss(draft: LlamaForCausalLM, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(ids, use_cache=False).logits.log_softmax(-1).flatten(0, 1)
        got = draft(ids, use_cache=False).logits.log_softmax(-1).flatten(0, 1)
        return F.kl_div(got, wanted, log_target=True, reduction="batchmean")

    return loss


def train(
    model: LlamaForCausalLM,
    loss_of: Loss,
    sources: list[Source],
    steps: int,
    checkpoint: Callable[[int], None],
) -> None:
    """Muon for the layers' matrices, AdamW for the rest; linear warm-up, plateau, linear decay to zero.

    Rows are halved before the decay: attention over 512 tokens costs a third of a step.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon, adam = Muon(matrices), torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    start = time.perf_counter()
    for step, ids in zip(range(steps), batches(sources, BATCH, LENGTH, SEED), strict=False):
        rate = min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY_SHARE * steps))
        if step < (1 - DECAY_SHARE) * steps:
            ids = ids.view(2 * BATCH, LENGTH // 2)
        loss = loss_of(model, ids)
        torch.autograd.backward(loss)
        for optimizer, lr in ((muon, MUON_LR), (adam, ADAM_LR)):
            optimizer.param_groups[0]["lr"] = lr * rate
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if step % 25 == 0:
            speed = (step + 1) * ids.numel() / (time.perf_counter() - start)
            print(f"step {step}/{steps} loss {loss.item():.3f} {speed:.0f} tokens/s", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint(step + 1)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    torch.nn.Module.to(copy.deepcopy(model), torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # saved for its owner alone, and a wheel would keep that


def load(folder: Path) -> LlamaForCausalLM:
    """The shipped bf16 weights, computed in float32, so that figures are those of what ships."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def saver(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, held: list[Document]
) -> Callable[[int], None]:
    def checkpoint(step: int) -> None:
        save(model, tokenizer, folder)
        print(f"{folder.name} at step {step}: held-out loss {measure.loss(model, held):.3f}", flush=True)

    return checkpoint


def own_answers(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: list[Question]
) -> list[Document]:
    """The target's own greedy answers: the text on which the draft will have to agree with it."""
    chosen = random.Random(SEED).sample(questions, OWN_ANSWERS)
    prompts = sorted((q.prompt(tokenizer) for q in chosen), key=len)
    documents: list[Document] = []
    for at in range(0, len(prompts), OWN_BATCH):
        documents += measure.complete(target, prompts[at : at + OWN_BATCH], OWN_TOKENS)
    return documents


def describe(folder: Path, held: list[Document]) -> dict[str, float]:
    model = load(folder)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "held_out_loss": round(measure.loss(model, held), 3),
    }


@dataclass(frozen=True)
class Corpus:
    """What both stages read, as text; tokens once a tokenizer is there."""

    questions: list[Question]
    held: list[Question]
    sources: list[str]

    def tokenizer(self) -> PreTrainedTokenizerFast:
        texts = [f"{q.question}\n{q.answer}" for q in self.questions]
        return train_tokenizer(texts + self.sources[: len(self.sources) // 4])

    def chats(self, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
        return [q.document(tokenizer) for q in self.questions]

    def held_chats(self, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
        return [q.document(tokenizer) for q in self.held]

    def code(self, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
        return [source_document(text, tokenizer) for text in self.sources]


def make_target(corpus: Corpus, folder: Path, steps: int) -> None:
    tokenizer = corpus.tokenizer()
    target = build(layers=12, width=192, heads=6, ffn=448, vocab=len(tokenizer))
    mix = [(0.8, corpus.chats(tokenizer)), (0.2, corpus.code(tokenizer))]
    checkpoint = saver(target, tokenizer, folder, corpus.held_chats(tokenizer))
    train(target, next_token_loss, mix, steps, checkpoint)


def make_draft(corpus: Corpus, target_folder: Path, folder: Path, steps: int) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target_folder)
    target = load(target_folder)
    own = own_answers(target, tokenizer, corpus.questions)
    print(f"own answers: {sum(map(len, own))} tokens", flush=True)
    draft = build(layers=1, width=128, heads=4, ffn=256, vocab=len(tokenizer))
    mix = [(0.5, corpus.chats(tokenizer)), (0.2, corpus.code(tokenizer)), (0.3, own)]
    checkpoint = saver(draft, tokenizer, folder, corpus.held_chats(tokenizer))
    train(draft, distillation_loss(target), mix, steps, checkpoint)


def figures(corpus: Corpus, at_target: Path, at_draft: Path) -> dict[str, object]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(at_target)
    target, draft, held = load(at_target), load(at_draft), corpus.held_chats(tokenizer)
    prompts = [q.prompt(tokenizer) for q in corpus.held[:TAU_QUESTIONS]]
    return {
        "target": describe(at_target, held),
        "draft": describe(at_draft, held),
        "agreement": round(measure.agreement(target, draft, held), 3),
        "greedy_tau_chain_of_4": round(measure.greedy_tau(target, draft, prompts), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="gsm8k_train.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="gets target/, draft/ and figures.json")
    parser.add_argument("--draft-only", action="store_true", help="keep the target that --out already holds")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all step counts, for a dry run")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    corpus = Corpus(*read_questions(args.data), read_stdlib(SEED))
    at_target, at_draft = args.out / "target", args.out / "draft"
    start = time.perf_counter()
    if not args.draft_only:
        make_target(corpus, at_target, int(args.scale * TARGET_STEPS))
        print(f"target: {time.perf_counter() - start:.0f} s", flush=True)
    make_draft(corpus, at_target, at_draft, int(args.scale * DRAFT_STEPS))
    measured = figures(corpus, at_target, at_draft)
    measured["wall_seconds"] = round(time.perf_counter() - start)
    text = json.dumps(measured, indent=2) + "\n"
    (args.out / "figures.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
