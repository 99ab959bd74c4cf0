"""An ordinary day of a cluster: mixed load, while one engine is added, one drained and one killed.

    python bench/studies/ordinary_day.py MODEL [--engines 2] [--minutes 10] [--clients 12] [--dtype bfloat16]

Clients ask one request after the other, of a hundred that recur; the first answer to each is what later ones are
compared with. Printed are answers, failures, texts that differ, seconds to the first chunk and longest seconds between
two chunks, before the first event (at a quarter of the time) and from then on.
"""

import argparse
import asyncio
import os
import random
import signal
import urllib.request
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from failover import Heard, asked, cluster, listen, serving
from openai import AsyncOpenAI

KINDS = 100


def post(url: str, path: str, body: bytes) -> None:
    call = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(call, timeout=900).read()


async def client(number: int, url: str, until: float, out: list[tuple[float, int, Heard]]) -> None:
    rng = random.Random(number)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=900) as it:
        model = (await it.models.list()).data[0].id
        while perf_counter() < until:
            kind, at = rng.randrange(KINDS), perf_counter()
            heard = await listen(it, model, asked(kind, 0), 0.0)
            out.append((at, kind, heard))
            await asyncio.sleep(rng.expovariate(2.0))


async def events(url: str, began: float, seconds: float, engines: int) -> list[str]:
    """What those who run it do, and what happens to them."""

    async def at(share: float) -> None:
        await asyncio.sleep(max(0.0, began + share * seconds - perf_counter()))

    told = []

    async def timed(what: str, work: Any) -> None:
        start = perf_counter()
        await work
        told.append(f"{start - began:.0f} s: {what}, which took {perf_counter() - start:.1f} s")

    await at(1 / 4)
    await timed("one added", asyncio.to_thread(post, url, "/cluster/scale", b'{"engines": %d}' % (engines + 1)))
    await at(1 / 2)
    busiest = max((await asyncio.to_thread(cluster, url))["engines"], key=lambda each: each["samples"])
    body = b'{"engine": "%s"}' % busiest["name"].encode()
    await timed(
        f"{busiest['name']} drained with {busiest['samples']} samples",
        asyncio.to_thread(post, url, "/cluster/drain", body),
    )
    await at(3 / 4)
    busiest = max((await asyncio.to_thread(cluster, url))["engines"], key=lambda each: each["samples"])

    async def kill() -> None:
        os.kill(busiest["process"], signal.SIGKILL)
        while True:
            now = await asyncio.to_thread(cluster, url)
            if now["lost"] and len(now["engines"]) == now["wanted"]:
                return
            await asyncio.sleep(0.5)

    await timed(f"{busiest['name']} killed with {busiest['samples']} samples until there was another one", kill())
    return told


def spread(name: str, values: list[float]) -> str:
    if len(values) < 2:
        return f"{name}: -"
    cuts = quantiles(values, n=100)
    return f"{name}: median {median(values):.2f}, P99 {cuts[98]:.2f}, worst {max(values):.2f} s of {len(values)}"


async def study(args: argparse.Namespace, url: str) -> int:
    began, seconds, out = perf_counter(), 60.0 * args.minutes, list[tuple[float, int, Heard]]()
    going = [client(n, url, began + seconds, out) for n in range(args.clients)]
    told, *_ = await asyncio.gather(events(url, began, seconds, args.engines), *going)
    for line in told:
        print(line)
    first, different, failed = dict[int, Heard](), list[int](), list[str]()
    for _, kind, heard in sorted(out, key=lambda it: it[0]):
        if heard.error:
            failed.append(heard.error)
        elif heard.what() != first.setdefault(kind, heard).what():
            different.append(kind)
    now = cluster(url)
    print(
        f"{len(out)} answers, {sum(h.counted for *_, h in out)} tokens, {len(failed)} failed, {len(different)} differ"
    )
    print(f"engines lost {now['lost']}, requests moved {now['moved']}")
    for error in failed[:3]:
        print(f"  {error}")
    quiet = [h for at, _, h in out if at < began + seconds / 4]
    after = [h for at, _, h in out if at >= began + seconds / 4]
    for name, which in (("quiet", quiet), ("while engines come and go", after)):
        print(spread(f"{name}, longest time between two chunks", [h.gap for h in which]))
        print(spread(f"{name}, time to the first chunk", [h.first for h in which]))
    return 1 if failed or different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    options = [*([args.model] if args.model else []), "--engines", str(args.engines), "--dtype", args.dtype]
    with serving(options, args.clients) as url:
        return asyncio.run(study(args, url))


if __name__ == "__main__":
    raise SystemExit(main())
