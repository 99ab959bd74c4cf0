"""A cluster of real engines in this process: they die, requests move, and every text is that of an engine alone."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline import AsyncLLM, Grammar, SamplingParams
from paceline.cluster.live import engines as live
from paceline.cluster.live.engines import Engines
from paceline.cluster.live.front import ClusterLLM
from paceline.cluster.live.voyage import Voyage
from paceline.core.errors import InputError, LostError, RefusalError
from paceline.engine.async_llm import Subscription
from paceline.engine.options import Options
from tests.cluster.live.links import DirectLink, held
from tests.cluster.waits import CLUSTER_WAIT_S, until

OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "blocks": 300, "check": True, "drafter": "ngram"}
ASKED = "Tom has 3 apples and Mary has 5. Tom has 3 apples and Mary has 5."
KINDS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=5, max_tokens=300, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.8, seed=7, max_tokens=60, grammar=Grammar("regex", r"[A-Z][a-z]+( [a-z]+){3,12}\.")),
    SamplingParams(temperature=0.8, seed=8, max_tokens=50, n=3),
    SamplingParams(temperature=0.8, seed=9, max_tokens=80, stop=["the"], min_tokens=5),
    SamplingParams(temperature=0.9, seed=10, max_tokens=60, repetition_penalty=1.2, presence_penalty=0.4),
]
Heard = dict[int, tuple[Any, ...]]


async def heard(llm: AsyncLLM | ClusterLLM, params: SamplingParams, prompt: str = ASKED) -> Heard:
    """What a client gets: of each sample tokens, texts by chunk and whole, reason and log-probabilities."""
    subscription: Subscription = await llm.submit([(llm.llm.text.encode(prompt), params)])
    done, texts = dict[int, Any](), dict[int, str]()
    while chunks := await subscription.news_to_come():
        for chunk in chunks:
            texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
            if chunk.done is not None:
                done[chunk.index] = chunk.done
    assert all(texts[i] == each.text for i, each in done.items())
    prompt_logprobs = [
        entry and (entry.token, round(entry.logprob, 3)) for entry in subscription.requests[0].prompt_logprobs
    ]
    return {
        i: (each.token_ids, each.text, each.finish_reason, prompt_logprobs,
            [(entry.token, round(entry.logprob, 3), sorted(entry.top)) for entry in each.logprobs or ()])
        for i, each in done.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> list[Heard]:
    async def all_kinds() -> list[Heard]:
        llm = AsyncLLM(**OPTIONS)
        try:
            return [await heard(llm, params) for params in KINDS]
        finally:
            llm.close()

    return asyncio.run(all_kinds())


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterLLM]:
    monkeypatch.setattr(live, "FIRST_REVIVAL_S", 0.01)
    engines = Engines(lambda name: DirectLink(name, OPTIONS))
    await engines.start(2)
    yield ClusterLLM(engines, Options(**OPTIONS))
    await engines.close()


async def clean(llm: ClusterLLM) -> None:
    """Nobody holds anything any more."""
    assert not llm.engines.voyages.going and not llm._of
    for state in list(llm.engines.states.values()):
        assert isinstance(state.link, DirectLink)
        if state.link.dead.is_set():  # nobody has looked yet
            continue
        engine = state.link.host.llm.llm.engine

        def look(engine: Any = engine) -> tuple[int, int, int]:
            engine.operations.expire(engine.now())
            engine.cache.check_integrity()
            return len(engine.session.requests), len(engine.desk.reserved), engine.cache.room()

        async with asyncio.timeout(CLUSTER_WAIT_S):
            while (await state.link.host.llm.call(look))[0]:
                await asyncio.sleep(0.01)
        assert await state.link.host.llm.call(look) == (0, 0, engine.cache.num_blocks)


def links(llm: ClusterLLM) -> list[DirectLink]:
    return [state.link for state in llm.engines.states.values()]  # type: ignore[misc]


async def under_way(cluster: ClusterLLM, asking: "asyncio.Task[Any] | None" = None) -> tuple[Voyage, DirectLink]:
    """The one sample, once it has some tokens, and an engine that does not have it."""
    going, there = cluster.engines.voyages.going, links(cluster)
    with held(there):
        await until(lambda: any(len(v.request.output) > 2 for v in going), [asking] if asking else [])
        [voyage] = going
    return voyage, next(link for link in there if link is not voyage.link)


async def test_texts_are_the_same_when_engines_die_and_requests_move(alone: list[Heard], cluster: ClusterLLM) -> None:
    rng, moves = random.Random(0), set[asyncio.Task[str]]()
    asking = [asyncio.create_task(heard(cluster, KINDS[i % len(KINDS)])) for i in range(18)]
    for turn in range(60):
        await asyncio.sleep(0.02)
        going, there = list(cluster.engines.voyages.going), links(cluster)
        if turn in (12, 30) and len(there) > 1:
            rng.choice(there).kill()
        elif going and there:
            voyage, to = rng.choice(going), rng.choice(there)
            moves.add(asyncio.create_task(cluster.engines.move(voyage, to)))
    got = await asyncio.wait_for(asyncio.gather(*asking), 60)
    assert [each for i, each in enumerate(got) if each != alone[i % len(KINDS)]] == []
    assert {await each for each in moves} <= {"moved", "stayed", "ended"}
    await clean(cluster)


@pytest.mark.parametrize("who", ["source", "destination"])
@pytest.mark.parametrize("when", ["reserve", "peek", "settle", "park", "open"])
async def test_an_engine_dies_in_each_state_of_a_move(
    who: str, when: str, alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    source = voyage.link
    victim = source if who == "source" else to
    for link in links(cluster):
        for verb in ("ask", "give", "open"):
            plain = getattr(link, verb)

            def dying(first: str, *args: Any, plain: Any = plain, verb: str = verb) -> Any:
                if when in (first, verb):
                    victim.kill()
                return plain(first, *args)

            monkeypatch.setattr(link, verb, dying)
    await asyncio.wait_for(cluster.engines.move(voyage, to), 30)
    assert await asyncio.wait_for(asking, 30) == alone[1]
    await clean(cluster)


async def test_a_full_destination_leaves_a_request_where_it_is(
    alone: list[Heard], cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asyncio.create_task(heard(cluster, KINDS[1]))
    voyage, to = await under_way(cluster, asking)
    number = await to.ask("reserve", 299, 0)
    assert await cluster.engines.move(voyage, to) in ("stayed", "ended")
    assert await asyncio.wait_for(asking, 30) == alone[1]
    await to.ask("settle", number, None)
    await clean(cluster)


async def test_drained_and_added_while_requests_run(alone: list[Heard], cluster: ClusterLLM) -> None:
    asking = [asyncio.create_task(heard(cluster, params)) for params in KINDS]
    with held(links(cluster)):
        await until(lambda: len(cluster.engines.voyages.going) >= 4, asking)
    [first, second] = list(cluster.engines.states)
    await asyncio.wait_for(cluster.engines.drain(first), 30)
    assert list(cluster.engines.states) == [second]
    with pytest.raises(InputError, match="last engine"):
        await cluster.engines.drain(second)
    with pytest.raises(InputError, match="no engine"):
        await cluster.engines.drain("engine-9")
    await asyncio.wait_for(cluster.engines.scale(2), 30)
    await asyncio.wait_for(cluster.engines.renew(), 30)
    assert len(cluster.engines.states) == 2 and not {first, second} & {*cluster.engines.states}
    assert (
        list(await asyncio.wait_for(asyncio.gather(*asking), CLUSTER_WAIT_S)) == alone
        and cluster.engines.lost_count == 0
    )
    await clean(cluster)


async def test_who_leaves_leaves_nothing(cluster: ClusterLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, n=2)
    subscription = await cluster.submit([(cluster.llm.text.encode(ASKED), params)])
    await subscription.news_to_come()
    voyage = next(iter(cluster.engines.voyages.going))
    [to] = [link for link in links(cluster) if link is not voyage.link]
    moving = asyncio.create_task(cluster.engines.move(voyage, to))
    await asyncio.sleep(0)
    cluster.abort(subscription)
    await asyncio.wait_for(moving, 30)
    await clean(cluster)


async def test_what_an_engine_refuses_is_refused(cluster: ClusterLLM) -> None:
    ids = cluster.llm.text.encode(ASKED)
    with pytest.raises(InputError, match="outside the vocabulary"):
        await cluster.submit([(ids, None), ([1 << 20], None)])
    with pytest.raises(RefusalError, match="policies above tokens"):
        await cluster.submit([(ids, None)], by=lambda prompt, params: [])
    await clean(cluster)


async def test_what_ends_each_engine_is_given_up(cluster: ClusterLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that kills whoever takes it ends with an error, and the cluster serves on."""
    plain = DirectLink.open

    def deadly(self: DirectLink, key: str, opening: Any) -> Any:
        if getattr(opening, "prompt", None) == [5]:
            self.kill()
        return plain(self, key, opening)

    monkeypatch.setattr(DirectLink, "open", deadly)
    with pytest.raises(LostError, match="broke off"):
        await asyncio.wait_for(cluster.submit([([5], None)]), 60)
    assert (await heard(cluster, KINDS[0]))[0][2] == "length"


async def test_another_model_does_not_join(cluster: ClusterLLM) -> None:
    cluster.engines.make = lambda name: DirectLink(name, {**OPTIONS, "dtype": "float32"})
    with pytest.raises(InputError, match="another model"):
        await cluster.engines.scale(3)


async def test_vectors_come_from_any_engine(cluster: ClusterLLM) -> None:
    ids = [cluster.llm.text.encode(text) for text in ("a", "b c")]
    first = await cluster.embed(ids)
    links(cluster)[0].kill()
    assert await cluster.embed(ids) == first and len(first) == 2
