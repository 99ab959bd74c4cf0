"""/v1/rerank and /v1/score: cosines of the vectors that /v1/embeddings gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import CheckpointError
from paceline.model.families import FAMILIES
from paceline.model.recognise import JUDGES, family_of
from tests.serve.http import post

QUERY = "Tom has 3 apples and buys 4 more. How many has he?"
DOCUMENTS = ["The sky is blue.", "Tom has 5 apples.", "x y z " * 40, "Tom has 3 apples and buys 4 more."]


def cosines(url: str, pooling: str = "mean") -> list[float]:
    """What numpy says of the vectors."""
    status, answer = post(url + "/v1/embeddings", {"input": [QUERY, *DOCUMENTS], "pooling": pooling})
    assert status == 200
    query, *others = (np.array(each["embedding"]) for each in answer["data"])
    return [float(query @ each) for each in others]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_the_order_of_their_cosines(url: str, path: str) -> None:
    want = cosines(url)
    body = {"query": QUERY, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]}
    status, answer = post(url + path, body)
    assert status == 200 and answer["model"] == "demo" and answer["usage"]["prompt_tokens"] > 0
    order = [each["index"] for each in answer["results"]]
    assert order == sorted(range(len(want)), key=lambda i: -want[i]) and order[0] == 3
    for each in answer["results"]:
        assert each["relevance_score"] == pytest.approx(want[each["index"]], abs=1e-5)
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    few = post(url + path, {**body, "top_n": 2, "return_documents": False})[1]["results"]
    assert [each["index"] for each in few] == order[:2] and all("document" not in each for each in few)


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_scores_are_cosines_one_to_many_and_in_pairs(url: str, names: tuple[str, str], pooling: str) -> None:
    one, two = names
    for left in (QUERY, [QUERY], [QUERY] * len(DOCUMENTS)):
        status, answer = post(url + "/v1/score", {one: left, two: DOCUMENTS, "pooling": pooling})
        assert status == 200 and [each["index"] for each in answer["data"]] == [0, 1, 2, 3]
        assert [each["score"] for each in answer["data"]] == pytest.approx(cosines(url, pooling), abs=1e-5)
    single = post(url + "/score", {one: QUERY, two: QUERY, "pooling": pooling})[1]["data"]
    assert [each["score"] for each in single] == pytest.approx([1], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "a", "image": "b"}]}, "image"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "x " * 3000, "documents": ["a"]}, "context"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2048}, "documents"),
        ("/v1/score", {"text_1": "a"}, "text_2 is missing"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "queries": "c"}, "give one pair"),
        ("/v1/score", {}, "give one pair"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "as many"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "as many"),
        ("/v1/score", {"queries": "a", "documents": []}, "documents is missing or empty"),
    ],
)
def test_what_cannot_be_ranked_is_refused_in_one_sentence(url: str, path: str, body: dict[str, Any], said: str) -> None:
    status, answer = post(url + path, body)
    assert status == 400 and said in answer["error"]["message"]


@pytest.mark.parametrize("end", JUDGES)
@pytest.mark.parametrize("kind", [next(iter(FAMILIES)), "bert"])
def test_a_head_that_judges_is_refused_by_name(end: str, kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"Some{end} has a head that judges texts"):
        family_of({"model_type": kind, "architectures": [f"Some{end}"]})


def test_serve_refuses_a_cross_encoder(tmp_path: Path) -> None:
    from tests.serve.process import said

    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]})
    )
    code, _, error = said("-m", "paceline", "serve", str(tmp_path), "--port", "0", timeout=600)
    assert code and "Qwen2ForSequenceClassification has a head that judges texts" in error and "Traceback" not in error
