"""A small model of another vocabulary over a stream of requests: does acceptance rise, and does the text stay?

    python bench/studies/crossvocab.py TARGET DRAFT QUESTIONS --online 0 --online 0.5

Requests come in order, `--batch` at a time, each of a new question of one kind. A line is a part of the stream: drafted
tokens that were kept, and tokens a pass. `online`: share of a core with which an adapter learns meanwhile
(draft/online.py); 0 has the n-gram cache alone. Nothing is timed.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from paceline import LLM, SamplingParams
from paceline.bench.prompts import encode, read_prompts
from paceline.draft.crossvocab import FOREIGN


def main(
    target: Path,
    draft: Path,
    questions: Path,
    online: Annotated[list[float], typer.Option()],
    count: int = 200,
    batch: int = 8,
    answer: int = 24,
    nodes: int = 4,
    parts: int = 4,
    quantize: str | None = None,
    plain: Annotated[int, typer.Option(help="Requests that are answered without drafts, too.")] = 32,
    drafter_set: Annotated[list[str] | None, typer.Option(help="As crossvocab.stop=length; may be repeated.")] = None,
    out: Path | None = None,
) -> None:
    prompts, texts = read_prompts(questions, count), dict[float, list[list[int]]]()
    for share in online:
        lines, texts[share] = stream(
            target, draft, prompts, share, batch, answer, nodes, parts, quantize, drafter_set or []
        )  # fmt: skip
        for line in lines:
            typer.echo(json.dumps(line))
            if out is not None:
                with out.open("a", encoding="utf-8") as handle:
                    handle.write(f"{json.dumps(line)}\n")
    with LLM(target, drafter="none", max_requests=batch, quantize=quantize) as llm:
        ids = [encode(llm.text, prompt) for prompt in prompts[:plain]]
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, ignore_eos=True)
        alone = [output.token_ids for output in llm.generate(ids, params, progress=False)]
    same = all(mine[:plain] == alone for mine in texts.values())
    agree = all(mine == texts[online[0]] for mine in texts.values())
    typer.echo(f"texts: {'as without drafts' if same else 'DIFFERENT from without drafts'} ({len(alone)}), "
               f"{'one and the same' if agree else 'DIFFERENT'} with every share ({len(prompts)})")  # fmt: skip


def stream(
    target: Path, draft: Path, prompts: list[str], share: float, batch: int, answer: int, nodes: int, parts: int,
    quantize: str | None, sets: list[str],
) -> tuple[list[dict[str, Any]], list[list[int]]]:  # fmt: skip
    lines, texts, size = list[dict[str, Any]](), list[list[int]](), -(-len(prompts) // parts)
    options: dict[str, Any] = {"max_requests": batch, "quantize": quantize, "online": share, "length": "fixed"}
    options["drafter_settings"] = tuple(sets)
    with LLM(target, draft, "crossvocab", **options) as llm:
        foreign: Any = llm.engine.components[FOREIGN]
        before = foreign.model.head(torch.eye(foreign.model.width)[:4]).clone()
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=answer, ignore_eos=True, max_nodes=nodes)
        for start in range(0, len(prompts), size):
            begun, stats = time.process_time(), []
            mine = prompts[start : start + size]
            for at in range(0, len(mine), batch):
                outputs = llm.generate([encode(llm.text, p) for p in mine[at : at + batch]], params, progress=False)
                stats += [output.stats for output in outputs]
                texts += [output.token_ids for output in outputs]
            offered, kept = (sum(sum(getattr(s, name)) for s in stats) for name in ("offered", "kept"))
            tokens, passes = sum(s.generated for s in stats), sum(s.passes for s in stats)
            adapter = foreign.adapter
            lines.append({
                "online": share, "requests": [start, start + len(mine)], "kept": round(kept / max(offered, 1), 4),
                "kept_a_pass": round(kept / max(passes, 1), 4), "tau": round(tokens / max(passes, 1), 4),
                "cpu_s": round(time.process_time() - begun, 1),
                "steps": 0 if adapter is None else adapter.steps,
                "learner_s": 0.0 if adapter is None else round(adapter.busy, 1),
            })  # fmt: skip
        after = foreign.model.head(torch.eye(foreign.model.width)[:4])
        lines[-1]["weights_changed"] = not torch.equal(before, after)
    return lines, texts


if __name__ == "__main__":
    typer.run(main)
