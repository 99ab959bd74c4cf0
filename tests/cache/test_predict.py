"""The learned bit."""

from paceline.cache.predict import LearnedReuse


def test_unknown_kinds_stay() -> None:
    assert LearnedReuse(4).bit(b"new", b"") == 0


def test_kinds_that_never_come_back_may_go() -> None:
    """A first block is always asked for again, the one behind it never."""
    learned = LearnedReuse(6)
    bits = [(learned.bit(b"head", b"root"), learned.bit(b"tail %d" % i, b"head")) for i in range(50)]
    assert bits[0] == (0, 0) and bits[-1] == (0, 1)


def test_texts_that_begin_alike_are_learned_together() -> None:
    """Behind `a` nothing comes back, behind `b` everything four times in a row."""
    learned = LearnedReuse(12)
    bits = []
    for i in range(200):
        learned.bit(b"a", b"root")
        once = learned.bit(b"a%d" % i, b"a")
        learned.bit(b"b", b"root")
        bits.append((once, learned.bit(b"b%d" % (i // 4), b"b")))
    assert bits[-4:] == [(1, 0), (1, 0), (1, 0), (1, 1)]


def test_what_was_used_before_is_another_kind() -> None:
    """All names come twice, at once, and then never again."""
    learned = LearnedReuse(6)
    bits = [[learned.bit(b"%d" % i, b"") for _ in range(2)] for i in range(50)]
    assert bits[-1] == [0, 1]


def test_it_unlearns() -> None:
    learned = LearnedReuse(4)
    for i in range(5000):
        learned.bit(b"once %d" % i, b"")
    assert learned.bit(b"x", b"") == 1
    for i in range(600):
        learned.bit(b"%d" % (i // 2), b"")
    assert learned.bit(b"z", b"") == 0


def test_its_memory_is_the_horizon() -> None:
    learned = LearnedReuse(10)
    for i in range(1000):
        learned.bit(b"%d" % i, b"")
    assert len(learned._uses) == 10 and len(learned._counts) <= 10


def test_again_means_within_the_horizon() -> None:
    """Five names in turn: again after five uses."""
    for horizon, bit in ((5, 1), (6, 0)):
        learned = LearnedReuse(horizon)
        assert [learned.bit(b"%d" % (i % 5), b"") for i in range(100)][-1] == bit
