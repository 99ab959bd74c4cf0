"""`paceline serve ENCODER`: vectors and scores of an encoder, by its command; every other door says what it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import CheckpointError, InputError
from paceline.retrieve import PassageIndex, build
from paceline.retrieve.encoder import PairEncoder, SentenceEncoder, StaticEncoder
from paceline.serve.encoders import encoder_at
from tests.serve.http import post, send
from tests.serve.process import said, spawned

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
TEXTS = ["a b c", "abc de", "h", "gg ff a b c d"]


def made(folder: Path, kind: str = "Model", **more: Any) -> Path:
    """A small random BERT with a tokenizer of eight letters."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, **{"num_labels": 1, **more},
    )  # fmt: skip
    getattr(transformers, f"Bert{kind}")(config).save_pretrained(folder)
    it = Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    it.pre_tokenizer = pre_tokenizers.Whitespace()
    it.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=it, model_max_length=24, **names)
    wrapped.save_pretrained(folder)
    return folder


def pooled(folder: Path, mode: str) -> Path:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pairs"), "ForSequenceClassification")


@pytest.fixture(scope="module")
def url(encoder: Path) -> Iterator[str]:
    with spawned("-m", "paceline", "serve", str(encoder), "--port", "0", "--served-model-name", "small") as (url, _):
        yield url


def test_vectors_and_cosines_are_those_of_the_encoder(url: str, encoder: Path) -> None:
    want = SentenceEncoder(encoder).encode(TEXTS)
    status, answer = post(url + "/v1/embeddings", {"input": TEXTS, "model": "small"})
    assert status == 200 and answer["usage"]["prompt_tokens"] == 5 + 7 + 3 + 10
    got = np.array([each["embedding"] for each in answer["data"]])
    assert np.allclose(got, want, atol=1e-6) and np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    ranked = post(url + "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]})[1]["results"]
    order = np.argsort(-(want[1:] @ want[0]), kind="stable")
    assert [each["index"] for each in ranked] == order.tolist()
    scores = post(url + "/v1/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]})[1]["data"]
    assert [each["score"] for each in scores] == pytest.approx((want * want[::-1]).sum(1), abs=1e-5)
    old = post(url + "/api/embed", {"model": "small:latest", "input": TEXTS})[1]["embeddings"]
    assert np.allclose(old, want, atol=1e-6)
    [card] = send(url + "/v1/models")[1]["data"]
    assert (card["id"], card["max_model_len"]) == ("small", 24)
    assert send(url + "/ready")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "is an encoder"),
        ("/v1/completions", {"prompt": "a"}, "is an encoder"),
        ("/v1/responses", {"input": "a"}, "is an encoder"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, "is an encoder"),
        ("/api/chat", {"model": "small", "messages": [{"role": "user", "content": "a"}]}, "is an encoder"),
        ("/tokenize", {"prompt": "a"}, "is an encoder"),
        ("/v1/embeddings", {"input": "a " * 23}, "25 tokens, but this encoder reads at most 24"),
        ("/v1/embeddings", {"input": "a" * 5000}, "more than 1536 characters"),
        ("/v1/embeddings", {"input": [2, 3]}, "takes texts"),
        ("/v1/embeddings", {"input": "a", "pooling": "last"}, "not trained with that"),
        ("/v1/embeddings", {"input": "a", "dimensions": 3}, "have 16"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "2048 are the most"),
    ],
)
def test_what_it_has_not_is_one_sentence(url: str, path: str, body: dict[str, Any], says: str) -> None:
    status, answer = post(url + path, body)
    told = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
    assert status == 400 and says in told


def test_a_cross_encoder_judges_pairs_and_makes_no_vectors(pairs: Path) -> None:
    want, _ = PairEncoder(pairs).judge([(TEXTS[0], text) for text in TEXTS])
    with spawned("-m", "paceline", "serve", str(pairs), "--port", "0") as (url, _):
        scores = post(url + "/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS})[1]["data"]
        assert [each["score"] for each in scores] == pytest.approx(want, abs=1e-6)
        ranked = post(url + "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})[1]["results"]
        assert [each["index"] for each in ranked] == np.argsort(-want, kind="stable").tolist()
        status, answer = post(url + "/v1/embeddings", {"input": "a"})
        assert status == 400 and "makes no vectors" in answer["error"]["message"]
        status, answer = post(url + "/v1/score", {"text_1": "a " * 12, "text_2": "b " * 12})
        assert status == 400 and "27 tokens" in answer["error"]["message"], "the pair counts"


def test_vectors_by_the_first_token(encoder: Path, tmp_path: Path) -> None:
    import torch

    cls = pooled(made(tmp_path), "cls_token")
    reader = SentenceEncoder(cls)
    with torch.inference_mode():
        state = reader.model(**reader.tokens(["a b"])).last_hidden_state[0, 0]
    assert np.allclose(reader.encode(["a b"])[0], torch.nn.functional.normalize(state, dim=0), atol=1e-6)
    with pytest.raises(InputError, match="does not pool"):
        SentenceEncoder(pooled(made(tmp_path / "max"), "max_tokens"))
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]', encoding="utf-8")
    with pytest.raises(InputError, match="Dense"):
        SentenceEncoder(cls)
    for name, says in (("modules.json", "no list of parts"), ("1_Pooling/config.json", "no JSON object")):
        for text, why in (("{" * 5000, "is not JSON"), ("7", says)):
            (tmp_path / name).write_text(text, encoding="utf-8")
            with pytest.raises(InputError, match=why):
                SentenceEncoder(cls)
        (tmp_path / name).unlink()


def test_what_is_no_encoder_of_this_kind_is_refused(encoder: Path, pairs: Path, tmp_path: Path) -> None:
    assert encoder_at(encoder) and encoder_at(str(pairs)) and not encoder_at(None) and not encoder_at("no/such")
    code, _, told = said("-m", "paceline", "serve", str(encoder), "--port", "0", "--drafter", "ngram")
    assert code == 2 and "drafter means nothing" in told and len(told.strip().splitlines()) == 1
    config = json.loads((pairs / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForSequenceClassification"]
    many = made(tmp_path, "ForSequenceClassification", num_labels=3)
    with pytest.raises(CheckpointError, match="3 classes"):
        PairEncoder(many)


def test_static_vectors_are_means_of_words(encoder: Path, tmp_path: Path) -> None:
    coder = StaticEncoder(encoder)
    one, other, both = coder.encode(["abc", "de", "abc de abc"])
    assert np.linalg.norm(both) == pytest.approx(1) and one @ other < 0.999
    lengths = [np.linalg.norm(coder._vector(word)) for word in ("abc", "de")]
    want = 2 * lengths[0] * one + lengths[1] * other
    assert both == pytest.approx(want / np.linalg.norm(want), abs=1e-5)
    assert coder.encode(["de abc abc"])[0] == pytest.approx(both, abs=1e-5), "words, not order"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("abc de f g a b c d hh gg aa bb", encoding="utf-8")
    built = build(tmp_path / "texts", tmp_path / "out", encoder, words=3, static=True)
    for made in (built, PassageIndex.open(tmp_path / "out")):
        it = made.retriever("exact")
        assert it.search([it.query(made.passages[2].text)], 1)[0][0][0] == 2
    with pytest.raises(InputError, match="another encoder"):
        PassageIndex.open(tmp_path / "out", SentenceEncoder(encoder))
