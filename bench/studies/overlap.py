"""What drafting beside verifying brings, in counts and on a virtual clock. None of it reads this machine's clock.

    python bench/studies/overlap.py mirror --model TARGET --draft DRAFT --prompts FILE   # fallback by kappa and exit
    python bench/studies/overlap.py simulate   # PEARL on machines of cost tables
    python bench/studies/overlap.py record --model TARGET --draft DRAFT --times TABLE.json   # what steps cost here
    python bench/studies/overlap.py simulate --times TABLE.json   # as if the two had cores of their own

`record` reads the clock, and needs an idle core. On an idle machine, speed is measured by the same command with
`--overlap shared` and `none` beside

    paceline bench --methods none,model,pearl,mirror,auto --overlap 1+1 --prompts FILE
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from paceline.core.noise import SimulationNoise, uniform
from paceline.core.params import SamplingParams
from paceline.core.plan import Work
from paceline.draft import DRAFTERS
from paceline.draft.mirror import Mirror
from paceline.engine.config import EngineConfig
from paceline.plan import DrafterFacts
from paceline.plan.belief import Tally
from paceline.plan.cost import Drafting, StepTimes, Terms
from paceline.simulate.figures import figures
from paceline.simulate.log import Arrival, Event, Setup, Step
from paceline.simulate.simulator import simulate
from paceline.simulate.workload import DraftRates, Speech, Workload, WorkloadJob

KAPPAS, EXITS = (1, 2, 4, 8), (0.25, 0.5, 0.75)
PARTS = {
    "target 16 cores, draft 4": (0.060, 0.010),
    "one GPU, draft on a CPU": (0.025, 0.012),
    "one GPU, draft on another": (0.030, 0.005),
}
"""{machine: seconds of a pass of the target, and of the draft model}"""


def variants() -> list[str]:
    """`mirror` with other figures, as drafters of their own."""
    names = []
    for kappa in KAPPAS:
        for share in EXITS:
            name = f"mirror_{kappa}_{share}"
            card = replace(DRAFTERS.card("mirror"), exit=share, auto=())
            DRAFTERS.register(name, card)(type(name, (Mirror,), {"kappa": kappa}))
            names.append(name)
    return names


def mirror(args: argparse.Namespace) -> None:
    from paceline import LLM

    DRAFTERS.names()
    names = variants()
    llm = LLM(args.model, draft=args.draft, drafter="none", dtype=args.dtype, nodes=2, max_model_len=1024, blocks=256)
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines() if line][: args.count]
    texts = [each if isinstance(each, str) else each.get("prompt") or each["text"] for each in prompts]
    plain: list[str] | None = None
    for name in names:
        engine = llm.engine
        engine.config.nodes[name] = 2
        wish = SamplingParams(temperature=args.temperature, seed=7, max_tokens=args.tokens, drafter=name)
        outs = [out.text for out in llm.generate(texts, wish)]
        plain = plain or outs
        windows = engine.drafters.windows
        reused, dropped = windows.reused[name], windows.dropped[name]
        same = sum(a == b for a, b in zip(outs, plain))
        print(f"{name}: fallback {dropped / max(1, reused + dropped):.3f} of {reused + dropped}; texts alike {same}")


def table(target: float, draft: float, share: float) -> StepTimes:
    """Passes that cost the same up to 16 rows, and a draft model's pass a token."""
    times = StepTimes()
    times.target = Terms({k: target * max(1, k / 16) if type(k) is int else 0.0 for k in times.target.weights})
    times.rest = Terms({"call": 5e-4, "several": 5e-4, "requests": 5e-5, "nodes": 0.0})
    for name in ("model", "pearl"):
        each = {"call": 0.0, "several": 0.0, "requests": 0.0, "depth": draft, "nodes": 0.0}
        times.drafts[name] = Terms(each)
    times.seen, times.beside = 1000, {"pearl": share}
    return times


def record(args: argparse.Namespace) -> None:
    """Measure this engine's table at start-up, as `auto` does, with more time for it, and write it."""
    from paceline import LLM
    from paceline.engine import calibrate

    calibrate.BUDGET_S = args.seconds
    options: dict[str, Any] = {"dtype": args.dtype, "max_model_len": 1024, "blocks": 256, "max_requests": 4}
    with LLM(args.model, draft=args.draft, drafter="auto", overlap="1+1", **options) as llm:
        times = calibrate.measure(llm.engine)
    args.times.write_text(json.dumps(times.dump()) + "\n", encoding="utf-8")
    print(f"{args.times}: a pass of one row {1e3 * target_seconds(times, 0):.2f} ms, of the draft model "
          f"{1e3 * draft_seconds(times, 8) / 8:.2f} ms a token")  # fmt: skip


def target_seconds(times: StepTimes, nodes: int, context: int = 128) -> float:
    """Seconds of a pass that verifies `nodes` nodes."""
    rows = 1 + nodes
    return times.of_target(Work(rows, 1, context, rows * context, rows))


def draft_seconds(times: StepTimes, tokens: int) -> float:
    return times.of_draft(Drafting("pearl", 1, tokens, tokens))


def placed(times: StepTimes, share: float) -> StepTimes:
    """Table in which `share` of the shorter part costs no time. All three drafters run the same draft model: one that
    the record had no time to reach costs what the others do."""
    times = StepTimes.load(json.loads(json.dumps(times.dump())))
    alike = ("model", "pearl", "mirror")
    known = next((times.drafts[name] for name in alike if name in times.drafts), None)
    if known is None:
        raise SystemExit("The table has no drafter that runs the draft model: record it with more --seconds.")
    for name in alike:
        times.drafts.setdefault(name, known)
    times.seen, times.beside = 1000, {"pearl": share}
    return times


def workload(drafter: str, times: StepTimes, chance: float, nodes: int | None = None, jobs: int = 8) -> Workload:
    """Requests of 200 tokens, one after the other, whose drafts are kept with this chance a token."""
    entries = {
        "none": DrafterFacts(nodes=0, chain=True),
        "model": DrafterFacts(nodes=nodes or 8, chain=True, group="draft", most=nodes),
        "pearl": DrafterFacts(nodes=nodes or 8, chain=True, group="draft", most=nodes, ahead="path"),
    }
    config = EngineConfig(blocks=64, max_requests=4, overlap="1+1")
    setup = Setup(config, ("draft",), entries, times.dump())
    arms = ("model", "pearl") if drafter == "auto" else ()
    each = [Arrival(0.0, i, i, [1] * 16, drafter, arms, "exact", 200) for i in range(jobs)]
    rates = DraftRates(entries)
    for name in entries:
        belief = rates.beliefs.belief((name, 0))
        belief.mean = Tally(1.0, [1e6] * 16, [1e6 * chance] * 16)
        belief.asked, belief.offered = [1e6] * 16, [1e6] * 16
    outputs = {i: Speech([2] * 200, "length") for i in range(jobs)}
    return Workload(setup, [WorkloadJob(0.0, [a]) for a in each], outputs, rates, times)


def rounds(events: list[Event]) -> Iterator[tuple[float, float, int]]:
    """(seconds, seconds without the rest, verified nodes) of the steps of one request that decodes."""
    for event in events:
        if isinstance(event, Step) and event.outcome and event.decision.items[0].nodes:
            times = event.outcome.times
            yield times.total, times.total - times.rest, event.outcome.work.rows - 1


def run(drafter: str, times: StepTimes, chance: float, nodes: int | None = None) -> tuple[float, list[Event]]:
    events = simulate(workload(drafter, times, chance, nodes), clients=1)
    return figures(events).throughput, events


def simulated(args: argparse.Namespace) -> None:
    machines = {name: table(*parts, 1.0) for name, parts in PARTS.items()}
    if args.times is not None:
        machines = {args.times.stem: placed(StepTimes.load(json.loads(args.times.read_text(encoding="utf-8"))), 0.0)}
    for machine, times in machines.items():
        for chance in map(float, args.chances.split(",")):
            apart, shared = placed(times, 1.0), placed(times, 0.0)
            fixed = {n: run("model", apart, chance, n)[0] for n in (1, 2, 3, 4, 6, 8)}
            best = max(fixed, key=fixed.__getitem__)
            none = run("none", apart, chance)[0]
            pearl, events = run("pearl", apart, chance)
            gamma = max(e.decision.items[0].nodes for e in events if isinstance(e, Step) and e.decision.items) + 1
            same = run("model", apart, chance, gamma)[0]
            auto, _ = run("auto", apart, chance)
            slow, told = run("auto", shared, chance)
            used = figures(told).drafters
            print(
                f"{machine}, kept {chance}: pearl (gamma {gamma}) / best model chain ({best} nodes) "
                f"{pearl / fixed[best]:.2f}, / model at the same gamma {pearl / same:.2f}, "
                f"/ none {pearl / none:.2f}; auto / best {auto / max(pearl, fixed[best], none):.2f}; "
                f"cores shared: auto / best of the others {slow / max(fixed[best], none):.2f}, "
                f"pearl's tokens {used['pearl'] / sum(used.values()):.3f}",
                flush=True,
            )
    if args.times is None:
        machines = {"t_target = 4 t_draft": table(0.04, 0.01, 1.0)}
    for machine, times in machines.items():
        law(machine, placed(times, 1.0))


def law(machine: str, times: StepTimes) -> None:
    """Print round times over what PEARL's section 4 says that they are."""
    print(f"{machine}: round time / max(gamma t_draft, t_target), with and without what is neither:")
    for gamma in range(2, 13, 2):
        _, events = run("pearl", times, 0.8, gamma - 1)
        pairs = []
        for seconds, bare, nodes in rounds(events):  # a round behind a rejection verifies one node, others gamma - 1
            longer = max(draft_seconds(times, gamma), target_seconds(times, nodes))
            pairs.append((seconds / longer, bare / longer))
        whole, bare = (mean(each) for each in zip(*pairs))
        print(
            f"  gamma {gamma}: {whole:.3f}, {bare:.3f}; gamma t_draft {1e3 * draft_seconds(times, gamma):.1f} ms, "
            f"t_target {1e3 * target_seconds(times, gamma - 1):.1f} ms; passes {len(pairs)}, by the algorithm "
            f"{passes(gamma, 0.8):.0f}"
        )


def passes(gamma: int, chance: float, texts: int = 8, length: int = 200) -> float:
    """Passes of the target by the paper's algorithm, played token by token apart from the engine."""
    noise, total, draws = SimulationNoise(1), 0, 0
    for _ in range(40):
        for _ in range(texts):
            done, window = 0, 0
            while done < length:
                kept = 0
                while kept <= window and uniform(noise.key(9, draws := draws + 1)) < chance:
                    kept += 1
                done, window = done + min(kept, window) + 1, gamma - 1 if kept > window else 0
                total += 1
    return total / 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mirror", "simulate", "record"))
    parser.add_argument("--model")
    parser.add_argument("--times", type=Path, help="a table that `record` writes and `simulate` reads")
    parser.add_argument("--seconds", type=float, default=40.0, help="of `record`")
    parser.add_argument("--chances", default="0.6,0.7,0.8,0.9", help="of a drafted token, in `simulate`")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    {"mirror": mirror, "simulate": simulated, "record": record}[args.what](args)


if __name__ == "__main__":
    main()
