"""Bodies that are no JSON at all: 400 with an error object, never FastAPI's 422."""

import pytest

from tests.serve.http import send

RAW: list[tuple[bytes, str]] = [
    (b"{", "not JSON"),
    (b"", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b"[]", "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b"\xff\xfe{}", "UTF-8"),
    (b'{"prompt": "\xe9"}', "UTF-8"),
    (b'{"prompt": "\\ud800"}', "surrogate"),
    (b'{"prompt": "a", "temperature": NaN}', "not JSON"),
    (b'{"prompt": ' + b"[" * 100_000, "depth"),
    (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", "depth"),
    (b'{"prompt": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}", "prompt is"),
]


@pytest.mark.parametrize(("raw", "words"), RAW, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_what_is_not_json_is_refused(url: str, path: str, raw: bytes, words: str) -> None:
    status, answer = send(url + path, raw)
    assert status == 400
    assert words in answer["error"]["message"] or path != "/v1/completions"


def test_json_must_be_called_so(url: str) -> None:
    """A web page of another origin can send text/plain without asking; it must not be served."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        status, answer = send(url + "/v1/completions", b'{"prompt": "a"}', kind)
        assert (status, "Content-Type" in answer["error"]["message"]) == (400, True)
