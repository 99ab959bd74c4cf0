"""A request's book-keeping: tokens, noise indices, speculation figures."""

from types import SimpleNamespace

from paceline.core.params import SamplingParams
from paceline.core.request import Request, SpecStats


def request(**fields):
    return Request(0, [1, 2, 3], SamplingParams(), seed=9, max_tokens=4, **fields)


def test_append_and_pending():
    r = request()
    assert (r.tokens, r.pending, r.left, r.length) == ([1, 2, 3], 3, 4, 0)
    r.lease = SimpleNamespace(length=3)
    r.append(7, author="ngram")
    assert (r.tokens, r.output, r.authors, r.pending, r.left) == ([1, 2, 3, 7], [7], ["ngram"], 1, 3)


def test_noise_index_is_the_place_in_the_text():
    """Resubmitting prompt + output continues with the same rows; an offset moves them."""
    grown = request()
    grown.append(5, author=None)
    assert request().index(1) == grown.index() == request(output=[5]).index() == 4
    assert request(offset=10).index() == 13
    assert grown.target_noise.key(grown.index()) == Request(1, [1, 2, 3, 5], SamplingParams(), 9).target_noise.key(4)


def test_lineage_and_purpose_separate_the_streams():
    one, fork = request(), request(lineage=(1,))
    keys = {n.key(4) for r in (one, fork) for n in (r.target_noise, r.draft_noise, r.accept_noise)}
    assert len(keys) == 6


def test_stats():
    stats = SpecStats()
    assert stats.tau == stats.acceptance_rate == 0.0
    stats.count([1, 1, 1], [1, 0, 0])
    stats.count([1], [1])
    stats.passes, stats.generated = 2, 4
    assert (stats.offered, stats.kept) == ([2, 1, 1], [2, 0, 0])
    assert (stats.drafted, stats.accepted, stats.tau, stats.acceptance_rate) == (4, 2, 2.0, 0.5)
