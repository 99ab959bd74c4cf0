"""The learned bit."""

from paceline.cache.predict import Learned


def test_unknown_kinds_stay() -> None:
    assert Learned(4).bit(b"new", 0) == 0


def test_kinds_that_never_come_back_may_go() -> None:
    """Depth 0 is always asked for again, depth 1 never."""
    learned = Learned(6)
    bits = [(learned.bit(b"head", 0), learned.bit(b"tail %d" % i, 1)) for i in range(50)]
    assert bits[-1] == (0, 1)


def test_what_was_used_before_is_another_kind() -> None:
    """Half of all names come twice, at once, and then never again."""
    learned = Learned(6)
    bits = [[learned.bit(b"%d" % i, 0) for _ in range(2)] for i in range(50)]
    assert bits[-1] == [0, 1]


def test_it_unlearns() -> None:
    learned = Learned(4)
    for i in range(5000):
        learned.bit(b"once %d" % i, 0)
    assert learned.bit(b"x", 0) == 1
    for _ in range(1000):
        learned.bit(b"x", 0)
        learned.bit(b"y", 0)
    for i in range(600):
        learned.bit(b"%d" % (i // 2), 0)
    assert learned.bit(b"z", 0) == 0


def test_its_memory_is_the_horizon() -> None:
    learned = Learned(10)
    for i in range(1000):
        learned.bit(b"%d" % i, i)
    assert len(learned._uses) == 10


def test_again_means_within_the_horizon() -> None:
    """Five names in turn: again after five uses."""
    for horizon, bit in ((5, 1), (6, 0)):
        learned = Learned(horizon)
        assert [learned.bit(b"%d" % (i % 5), 0) for i in range(100)][-1] == bit
