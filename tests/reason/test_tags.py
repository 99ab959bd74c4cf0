"""Tags over tokens: blocks, positions and sight as in training, and faults."""

from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.joined import joined
from paceline.reason.tags import Tag, TagBlock, TagParser, blocks, gaps, layout, read, trained
from tests.tiny import trained as tokenizer_of

NAMES = {"P": "Parallel", "G": "Goal", "O": "Outline", "p": "Path", "C": "Conclusion", "T": "Think"}


def tagged(text: str) -> tuple[list[TagBlock], int]:
    """Blocks and length of a text like `P G g /G p a /p C c /C /P`, where each word is a token."""
    words = text.split()
    tags = [
        Tag(NAMES[word.strip("/")], word[0] == "/", at, at) for at, word in enumerate(words) if word.strip("/") in NAMES
    ]
    return blocks(tags), len(words)


NESTED = "x P G g /G p a P G h /G p b b /p p c /p C d /C /P e /p p f f /p C k /C /P y"


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("P G g /G p a a a /p p b /p C c /C /P", [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 9, 10, 11, 12]),
        ("x P G g /G p a /p C c /C /P y", [*range(13)]),
        ("P G /G p /p p a /p p a a /p C /C /P", [0, 1, 2, 3, 4, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9]),
        (
            NESTED,
            [*range(15), 11, 12, 13, 15, 16, 17, 18, 19, 20, 5, 6, 7, 8, 21, 22, 23, 24, 25],
        ),
    ],
)
def test_golden_positions(text: str, positions: list[int]) -> None:
    assert trained(*tagged(text))[0] == positions


def test_golden_sight() -> None:
    _, sees = trained(*tagged("P G /G p a /p p b /p C /C /P"))
    assert [gaps(row[: at + 1]) for at, row in enumerate(sees)] == [()] * 6 + [((3, 6),)] * 3 + [()] * 3
    _, sees = trained(*tagged(NESTED))
    found = [gaps(row[: at + 1]) for at, row in enumerate(sees)]
    assert found[15:18] == [((11, 15),)] * 3 and found[18] == () and found[24:28] == [((5, 24),)] * 4
    assert found[28:] == [()] * 5


def test_stretches_of_a_trained_text_are_those_of_its_joins() -> None:
    inner = joined(11, [(15, ()), (14, ())])
    assert layout(*trained(*tagged(NESTED))) == joined(5, [(24, inner), (9, ())])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P G /G p /p C /C", "is not closed"),
        ("P G /G p /p /P", "lacks a goal, a path or a conclusion"),
        ("P G /G C /C /P", "lacks a goal, a path or a conclusion"),
        ("P p /p C /C /P", "lacks a goal"),
        ("/P", "closes nothing"),
        ("P G /P /G", "closes nothing"),
    ],
)
def test_unbalanced_tags_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tagged(text)


WHOLE = (
    "Let me see.<Parallel>\n<Goal>\n<Outline>1: add</Outline> <Outline>2: take away 1:2</Outline></Goal>"
    "<Path>1: it is < 3</Path><Path>2: 5<Parallel><Goal><Outline>2.1: x</Outline><Outline>2.2: y</Outline></Goal>"
    "<Path>2.1: z</Path><Path>2.2: w</Path><Conclusion>u</Conclusion></Parallel></Path><Conclusion>done</Conclusion>"
    "</Parallel> The end."
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(300))


@pytest.mark.parametrize("special", [False, True])
def test_tags_are_found_whole_or_spelled(tokenizer: Any, special: bool) -> None:
    from copy import deepcopy

    tokenizer = deepcopy(tokenizer)
    if special:
        tokenizer.add_special_tokens(
            {"additional_special_tokens": [f"<{s}{n}>" for n in NAMES.values() for s in ("", "/")]}
        )
    tokens = tokenizer.encode(WHOLE, add_special_tokens=False)
    parser, seen = TagParser(tokenizer), []
    for token in tokens:
        for tag in parser.feed(token):
            assert ("<" in tokenizer.decode([tokens[tag.first]])) and (">" in tokenizer.decode([tokens[tag.last]]))
            if tag.name == "Goal" and tag.closes:
                seen.append([(outline.id, outline.text) for outline in parser.goal])
    assert parser.fault is None and not parser.stack
    assert seen == [[("1", "add"), ("2", "take away 1:2")], [("2.1", "x"), ("2.2", "y")]]
    outer, inner = read(tokenizer, tokens)
    assert len(outer.paths) == len(inner.paths) == 2
    assert outer.paths[1][0] < inner.paths[0][0] < inner.paths[1][1] < outer.paths[1][1] <= outer.conclusion


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<Goal>", "stands in the text"),
        ("<Parallel><Path></Goal>", "expected is </Path>"),
        ("<Parallel><Goal><Think>", "stands in Goal"),
        ("<Parallel><Outline>1: a</Outline>", "stands in Parallel"),
        ("<Parallel><Goal><Outline>a</Outline>", "number and a colon"),
        ("a </Path>", "expected is no closing tag"),
    ],
)
def test_faults_say_where(tokenizer: Any, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tokenizer, tokenizer.encode(text, add_special_tokens=False))
