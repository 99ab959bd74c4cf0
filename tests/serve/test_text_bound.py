"""What a body may be before anything of it is computed: how long a text is, and how it is packed."""

from contextlib import nullcontext
from pathlib import Path

import httpx2
import pytest

from paceline.core.errors import InputError
from paceline.engine.text import Text
from paceline.serve.prompts import TextBound, check_length, longest
from paceline.serve.tokens import Tokens
from tests.tiny import tiny_checkpoint


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("a" * 21, False), (" " * 21, False), ("\n" * 10_000_000, False), ("<a>" * 6 + " " * 1000, False),
        ("<b>" + " " * 1000 + "<a>", True), (" " * 1000 + "<a>", True), ("<b>" + "\t " * 1000, True),
        ("<a>" + " " * 1000, False), (" " * 1000 + "<b>", False), ("<a>" + " " * 20 + "x" + " " * 20 + "<b>", False),
        ("<a>" + " " * 1000 + "<b>", False),
    ],
)  # fmt: skip
def test_blanks_count_but_where_a_token_takes_them(text: str, fits: bool) -> None:
    """4 MB of blanks are as dear as any text. `<a>` takes those before it, `<b>` those after it."""
    bound = TextBound(20, {"<a>": (True, False), "<b>": (False, True)})
    with nullcontext() if fits else pytest.raises(InputError, match="characters"):
        check_length(text, bound)


def test_the_bound_follows_the_tokenizer(tmp_path: Path) -> None:
    from transformers import AddedToken

    text = Text(tiny_checkpoint(tmp_path / "m"))
    bound = longest(text, Tokens(text.tokenizer), 4)
    assert bound.absorbing == {}
    with pytest.raises(InputError):
        check_length(" " * 4_000_000, bound)
    text.tokenizer.add_tokens(AddedToken("<gap>", lstrip=True, normalized=False), special_tokens=True)
    bound = longest(text, Tokens(text.tokenizer), 4)
    assert bound.absorbing == {"<gap>": (True, False)}
    wide = " " * 1_000_000 + "<gap>"
    assert len(text.encode(wide)) <= 4
    check_length(wide, bound)


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("identity, br", 415), ("identity", 200), ("", 200)])
def test_a_body_that_is_packed_is_refused(url: str, coding: str, status: int) -> None:
    """Whatever its bytes are: plain JSON that is called gzip is no JSON."""
    for path, body in (("/tokenize", b'{"prompt": "a"}'), ("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')):
        got = httpx2.post(
            url + path, content=body, headers={"Content-Type": "application/json", "Content-Encoding": coding}
        )
        assert got.status_code == status, got.text
        assert status == 200 or "Content-Encoding" in got.json()["error"]["message"]
