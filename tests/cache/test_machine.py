"""Random sessions agree with the model, and each of the cache's mutants is caught by them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from paceline.cache import cache as cache_module
from paceline.cache import lease as lease_module
from paceline.cache.blocks import BlockPool, chain_hash
from paceline.cache.cache import Cache
from paceline.cache.lease import Lease
from paceline.cache.policies import EVICTION_POLICIES
from paceline.cache.txn import Txn
from paceline.core.errors import IntegrityError

from .machine import CacheMachine

QUICK = settings(
    max_examples=180,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
PATIENT = settings(QUICK, max_examples=2_000)
"""For mutants, which end it as soon as they die."""


def test_random_sessions_agree_with_the_model() -> None:
    run_state_machine_as_test(CacheMachine, settings=QUICK)


def under(eviction: str) -> type[CacheMachine]:
    return type("CacheMachine", (CacheMachine,), {"eviction": eviction})


@pytest.mark.parametrize("eviction", sorted(EVICTION_POLICIES.keys() - {"lru"}))
def test_random_sessions_agree_under_every_eviction_policy(eviction: str) -> None:
    run_state_machine_as_test(under(eviction), settings=settings(QUICK, max_examples=60))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("eviction", sorted(EVICTION_POLICIES))
def test_many_random_sessions_agree_with_the_model(eviction: str) -> None:
    thorough = settings(QUICK, max_examples=3_000, stateful_step_count=60, derandomize=False, phases=list(Phase))
    run_state_machine_as_test(under(eviction), settings=thorough)


def publish_before_verify(patch: pytest.MonkeyPatch) -> None:
    begin = Cache.begin

    def mutant(self: Cache, lease: Lease, given: int, nodes: int) -> Txn:
        txn = begin(self, lease, given, nodes)
        size, name = self.block_size, lease.root
        tokens = [*lease.tokens, *[0] * txn.rows]
        for i in range(len(tokens) // size):
            name = chain_hash(name, tokens[i * size : (i + 1) * size])
            if i >= lease.sealed and self.pool.hashes[lease.blocks[i]] is None:
                self.pool.publish(lease.blocks[i], name, lease.groups)
        return txn

    patch.setattr(Cache, "begin", mutant)


def seal_above_a_frontier(patch: pytest.MonkeyPatch) -> None:
    seal = Lease.seal

    def mutant(self: Lease) -> None:
        frontier, groups = self.frontier, self.groups
        self.frontier = dict.fromkeys(groups - {"target"}, self.length)
        seal(self)
        self.frontier = frontier

    patch.setattr(Lease, "seal", mutant)


def forget_moves(patch: pytest.MonkeyPatch) -> None:
    commit = Txn.commit

    def mutant(self: Txn, *args: Any) -> list[Any]:
        commit(self, *args)
        return []

    patch.setattr(Txn, "commit", mutant)


def rewind_inside_an_immutable_block(patch: pytest.MonkeyPatch) -> None:
    cut = Lease.cut

    def mutant(self: Lease, length: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BlockPool, "immutable", lambda *_: False)
            return cut(self, length)

    patch.setattr(Lease, "cut", mutant)


def rewind_inside_an_immutable_block_unseen_by_the_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "immutable", lambda *_: False)


def leak_on_abort(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Txn) -> None:
        self._end()
        del self.lease.blocks[self.lease.pool.blocks_for(self.lease.length) :]

    patch.setattr(Txn, "abort", mutant)


def keep_surplus_on_commit(patch: pytest.MonkeyPatch) -> None:
    commit = Txn.commit

    def mutant(self: Txn, *args: Any) -> list[Any]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Lease, "trim", lambda _: None)
            return commit(self, *args)

    patch.setattr(Txn, "commit", mutant)


def hash_without_parent(patch: pytest.MonkeyPatch) -> None:
    for module in (cache_module, lease_module):
        patch.setattr(module, "chain_hash", lambda _, *rest: chain_hash(b"", *rest))


def hash_without_extra_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache_module, "root_hash", lambda *_: b"")


def match_without_asking_for_groups(patch: pytest.MonkeyPatch) -> None:
    find = BlockPool.find
    patch.setattr(BlockPool, "find", lambda self, name, *_: find(self, name, frozenset({"target"})))


def hand_out_a_held_block(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: BlockPool, block: int) -> None:
        self.refs[block] += 1

    patch.setattr(BlockPool, "acquire", mutant)


def frontier_survives_rewind(patch: pytest.MonkeyPatch) -> None:
    cut = Lease.cut

    def mutant(self: Lease, length: int) -> int:
        frontier = dict(self.frontier)
        kept = cut(self, length)
        self.frontier = frontier
        return kept

    patch.setattr(Lease, "cut", mutant)


def keep_a_tail_that_is_in_use(patch: pytest.MonkeyPatch) -> None:
    unpark = BlockPool._unpark

    def mutant(self: BlockPool, block: int) -> None:
        unpark(self, block)
        self.tails.add(block)

    patch.setattr(BlockPool, "_unpark", mutant)


def evict_a_head_before_its_tail(patch: pytest.MonkeyPatch) -> None:
    park = BlockPool._park

    def mutant(self: BlockPool, block: int) -> None:
        park(self, block)
        self.tails.add(block)

    patch.setattr(BlockPool, "_park", mutant)


@pytest.mark.parametrize(
    "mutant",
    [
        keep_a_tail_that_is_in_use,
        evict_a_head_before_its_tail,
        publish_before_verify,
        seal_above_a_frontier,
        forget_moves,
        rewind_inside_an_immutable_block,
        rewind_inside_an_immutable_block_unseen_by_the_check,
        leak_on_abort,
        keep_surplus_on_commit,
        hash_without_parent,
        hash_without_extra_key,
        match_without_asking_for_groups,
        hand_out_a_held_block,
        frontier_survives_rewind,
    ],
)
def test_mutant_dies(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):
        run_state_machine_as_test(CacheMachine, settings=PATIENT)
