"""LongSpec over the length of the text: bytes that its drafter remembers of a request, and tokens a pass.

    python bench/studies/longspec.py TARGET HEAD DATA [--beside OTHER_HEAD]

A prompt is as many worked questions of GSM8K as fit the length, then a question of its test part. `--beside`: another
head of the target, as a control: the text gets easier or harder to guess with its length, too. Nothing is timed.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline import LLM, SamplingParams
from paceline.draft.head import method_of
from paceline.draft.longspec import KeyWindow, LongSpecDrafter
from paceline.train.data import read_lines


def main(
    target: Path,
    head: Path,
    data: Path,
    beside: Annotated[list[Path] | None, typer.Option()] = None,
    lengths: str = "512,1024,2048,4096",
    each: int = 5,
    answer: int = 48,
    nodes: int = 24,
) -> None:
    shots, questions = read_lines(data / "gsm8k_train.jsonl"), read_lines(data / "gsm8k_test.jsonl")[:each]
    sizes, most = [int(x) for x in lengths.split(",")], list[int]()
    learn = LongSpecDrafter.learn

    def watched(self: LongSpecDrafter, view: Any) -> None:
        learn(self, view)
        most.append(sum(it.kv.nbytes for it in view.slots.values() if isinstance(it, KeyWindow)))

    LongSpecDrafter.learn = watched  # type: ignore[method-assign]
    for path in (head, *(beside or ())):
        method = method_of(path)
        with LLM(target, path, drafter=method, length="fixed", max_requests=1, max_model_len=4096, blocks=264) as llm:
            base = 0.0
            for size in sizes:
                room = size - answer
                prompts = [prompt(llm, shots, line["question"], room) for line in questions]
                params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, ignore_eos=True, max_nodes=nodes)
                most.clear()
                stats = [output.stats for output in llm.generate(prompts, params, progress=False)]
                tau = sum(s.generated for s in stats) / sum(s.passes for s in stats)
                base = base or tau
                kept = f", {max(most):,} bytes remembered" if most else ""
                typer.echo(f"{path.name:10} {size:5} tokens: tau {tau:.3f} ({tau / base:.3f} of the shortest){kept}")


def prompt(llm: LLM, shots: list[dict[str, Any]], question: str, room: int) -> list[int]:
    """Token ids, at most `room`: worked questions, always the same ones first, then this one."""
    tail = llm.text.encode(f"Question: {question}\nAnswer:")
    ids: list[int] = []
    for shot in shots:
        more = llm.text.encode(f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n")
        if len(ids) + len(more) + len(tail) > room:
            break
        ids += more
    return [*ids, *tail]


if __name__ == "__main__":
    typer.run(main)
