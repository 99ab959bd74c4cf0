"""Mixed load under each schedule, in process: are texts those of requests that run alone, and is anything left over?

    python bench/studies/mixed_load.py --minutes 10 [--model M --draft D] [--schedules chunked layered ...]

Requests come as places get free: short and long prompts, some of them beginning alike, greedy and sampled, with every
kind of drafter, several samples of a prompt, log-probabilities, and aborts. Afterwards a sample of the texts is
compared with those of a plain engine that has one request at a time, and the engine is looked through for what should
be gone. Time here only says for how long: it may run on a busy machine.
"""

import argparse
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.engine.loop import Engine
from paceline.schedule.policies import SCHEDULES

DRAFTERS = ("auto", "auto", "none", "ngram", "model", "ngram|model", "topk")
PLACES = 8
COMPARED = 60
GROUPED = "chunked in groups of 3"


def wish(rng: random.Random, vocab: int, longest: int, stems: list[list[int]]) -> tuple[list[int], SamplingParams]:
    """A request by chance."""
    size = rng.choice((4, 20, 60, 200, longest))
    prompt = [*rng.choice(([], *stems)), *(rng.randrange(5, vocab) for _ in range(rng.randint(1, size)))][:longest]
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 1.0)), seed=rng.randrange(1000), max_tokens=rng.randint(1, 60),
        drafter=rng.choice(DRAFTERS), n=rng.choice((1, 1, 1, 2)), ignore_eos=rng.random() < 0.7,
        prompt_logprobs=rng.choice((None,) * 9 + (1,)), max_nodes=rng.choice((None, None, 2, 16)),
        client=rng.choice("xyz"), user=rng.choice("abc"),
    )  # fmt: skip
    return prompt, params


def left_over(engine: Engine) -> list[str]:
    """What should be gone and is not."""
    found, pool = [], engine.cache.pool
    engine.cache.check_integrity()
    desk = engine.desk
    queues: dict[str, list[Any]] = {"running": desk.running, "waiting": desk.waiting, "reserved": [*desk.reserved]}
    for name, value in {**queues, "branches": [*desk.branches.holding()]}.items():
        if value:
            found.append(f"{len(value)} {name}")
    engine.cache.drop_prefix()
    if engine.cache.room() != pool.num_blocks:
        found.append(f"{pool.num_blocks - engine.cache.room()} blocks")
    for name, slots in engine.drafters.slots.items():
        if slots:
            found.append(f"{len(slots)} texts in drafter {name}")
    if engine.drafters.errors:
        found.append(f"errors {engine.drafters.errors[:2]}")
    return found


def serve(llm: LLM, seconds: float, seed: int) -> tuple[list[Request], Counter[str]]:
    """Load for so long, to its end."""
    engine, rng = llm.engine, random.Random(seed)
    vocab, longest = engine.model.vocab_size, min(900, engine.session.longest - 70)
    stems = [[rng.randrange(5, vocab) for _ in range(size)] for size in (40, 150)]
    done, live, count, end = list[Request](), list[Request](), Counter[str](), time.monotonic() + seconds
    while engine.busy or time.monotonic() < end:
        while time.monotonic() < end and len(live) < PLACES + 3:
            prompt, params = wish(rng, vocab, longest, stems)
            new = engine.submit(prompt, params.resolve({}))
            count["requests"] += len(new)
            live += new
        if live and rng.random() < 0.02:
            engine.abort(rng.choice(live))
            count["aborts"] += 1
        engine.step()
        count["steps"] += 1
        done += [r for r in live if r.finish not in (None, "abort", "error")]
        count["errors"] += sum(r.finish == "error" for r in live)
        live = [r for r in live if r.finish is None]
    count["pre-emptions"] = engine.desk.totals.preemptions
    return done, count


def alone(llm: LLM, request: Request) -> list[int]:
    """What a request draws by itself, without drafts."""
    engine, params = llm.engine, request.params
    same = engine.submit(request.prompt, SamplingParams(
        temperature=params.temperature, seed=params.seed, max_tokens=params.max_tokens, drafter="none",
        n=params.n, ignore_eos=params.ignore_eos,
    ).resolve({}))  # fmt: skip
    while engine.busy:
        engine.step()
    return next(r.output for r in same if r.seed == request.seed and r.lineage == request.lineage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--schedules", nargs="+", default=[*SCHEDULES, GROUPED])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    models: dict[str, Any] = {name: at for name in ("model", "draft") if (at := getattr(args, name))}
    plain = LLM(**models, drafter="none", max_requests=2, prefix_cache=False)
    for number, name in enumerate(args.schedules):
        group = {"schedule": "chunked", "group_size": 3} if name == GROUPED else {"schedule": name}
        more = {"layer_groups": 3} if name == "layered" else {}
        llm = LLM(**models, **group, **more, blocks=300, max_requests=PLACES, check=True)  # type: ignore[arg-type]
        done, count = serve(llm, 60 * args.minutes, args.seed + number)
        some = random.Random(args.seed).sample(done, min(COMPARED, len(done)))
        other = [r.id for r in some if alone(plain, r) != r.output]
        found = left_over(llm.engine)
        print(
            f"{name}: {args.minutes:g} minutes, {dict(count)}; {len(some) - len(other)} of {len(some)} texts as alone"
            f"{f', others {other}' if other else ''}; left over: {', '.join(found) or 'nothing'}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
