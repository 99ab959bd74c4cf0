from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from paceline.bench.load.sse import Events

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(lambda s: s.encode())
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
NOISE = st.sampled_from([b": a comment", b"event: x", b"id: 1", b"retry: 10", b"data-like: y", b":"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """(bytes, data of each event) with any line ends, comments and other fields."""
    out, want = b"", []
    for _ in range(draw(st.integers(0, 5))):
        data = draw(st.lists(LINES, max_size=3))
        lines = [b"data:" + draw(st.sampled_from([b"", b" "])) + line if line and line[:1] != b" " else b"data: " + line
                 for line in data]  # fmt: skip
        for noise in draw(st.lists(NOISE, max_size=2)):
            lines.insert(draw(st.integers(0, len(lines))), noise)
        for line in [*lines, b""]:
            end = draw(ENDS)
            out += line + (b"\r\n" if out.endswith(b"\r") and line + end == b"\n" else end)
        if data:
            want.append(b"\n".join(data))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + out, want


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(streams(), st.lists(st.integers(0, 10_000), max_size=30))
@example((b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]), list(range(24)))
@example((b"\xef\xbb\xbfdata: a\r\rdata: b\n\n", [b"a", b"b"]), list(range(24)))
def test_any_split_gives_the_same_events(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    data, want = stream
    parser = Events()
    assert [event for piece in pieces(data, cuts) for event in parser.feed(piece)] == want


def test_an_event_without_its_empty_line_is_not_one() -> None:
    parser = Events()
    assert parser.feed(b"data: a\n") == [] and parser.feed(b"\n") == [b"a"]


def test_data_lines_are_joined_and_one_space_is_dropped() -> None:
    assert Events().feed(b"data:  a\ndata\ndata:b\n\n") == [b" a\n\nb"]
