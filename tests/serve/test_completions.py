"""POST /v1/completions against the offline engine."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from paceline import LLM, SamplingParams
from paceline.serve.responses import CompletionShape
from tests.serve.http import events, post

PROMPT = "Tom has 3 apples and buys 4 more."
PATH = "/v1/completions"


def offline(llm: LLM, prompt: Any, **params: Any) -> Any:
    return llm.generate(prompt, SamplingParams(**params), progress=False)[0]


def test_every_form_of_prompt(client: OpenAI, llm: LLM) -> None:
    ids = llm.text.encode(PROMPT)
    want = offline(llm, PROMPT, max_tokens=8, seed=3).text
    two = offline(llm, "def f(x):", max_tokens=8, seed=3).text
    for prompt, texts in (
        (PROMPT, [want]),
        ([PROMPT, "def f(x):"], [want, two]),
        (ids, [want]),
        ([ids, llm.text.encode("def f(x):")], [want, two]),
    ):
        got = client.completions.create(model="demo", prompt=prompt, max_tokens=8, seed=3)
        assert [c.text for c in got.choices] == texts
        assert [c.index for c in got.choices] == list(range(len(texts)))


def test_sixteen_tokens_by_default_and_a_fresh_seed_that_repeats_the_text(client: OpenAI) -> None:
    got = client.completions.create(model="demo", prompt=[PROMPT, PROMPT], extra_body={"ignore_eos": True})
    first, second = got.choices
    assert got.usage is not None and got.usage.completion_tokens == 32
    assert first.seed != second.seed and first.seed < 2**53  # type: ignore[attr-defined]
    again = client.completions.create(
        model="demo",
        prompt=PROMPT,
        seed=first.seed,
        extra_body={"ignore_eos": True},  # type: ignore[attr-defined]
    )
    assert again.choices[0].text == first.text


def test_several_samples_are_interleaved_by_index(url: str, llm: LLM) -> None:
    want = [
        out.text for prompt in (PROMPT, "def f(x):") for out in offline(llm, prompt, n=3, max_tokens=12, seed=5).outputs
    ]
    body = {"prompt": [PROMPT, "def f(x):"], "n": 3, "max_tokens": 12, "seed": 5}
    chunks = [c["choices"][0] for c in events(url + PATH, body)]
    texts, order = [""] * 6, [c["index"] for c in chunks]
    for chunk in chunks:
        texts[chunk["index"]] += chunk["text"]
    assert texts == want
    assert order != sorted(order)
    assert sum(c["finish_reason"] is not None for c in chunks) == 6


def test_log_probabilities_are_the_engines(client: OpenAI, llm: LLM) -> None:
    want = offline(llm, PROMPT, max_tokens=6, seed=2, logprobs=3).outputs[0]
    got = client.completions.create(model="demo", prompt=PROMPT, max_tokens=6, seed=2, logprobs=3).choices[0].logprobs
    assert got is not None and got.tokens is not None and got.top_logprobs is not None
    assert got.token_logprobs == pytest.approx([e.logprob for e in want.logprobs], abs=1e-4)
    assert "".join(got.tokens) == want.text
    for top, entry in zip(got.top_logprobs, want.logprobs, strict=True):
        assert len(top) == len({*entry.top, entry.token})
    assert got.text_offset == [len("".join(got.tokens[:i])) for i in range(6)]


def test_echo_puts_the_prompt_before_text_and_log_probabilities(url: str, llm: LLM) -> None:
    want = offline(llm, PROMPT, max_tokens=4, seed=2, logprobs=0, prompt_logprobs=0)
    body = {"prompt": PROMPT, "max_tokens": 4, "seed": 2, "logprobs": 0, "echo": True}
    whole = post(url + PATH, body)[1]["choices"][0]
    assert whole["text"] == PROMPT + want.text
    got = whole["logprobs"]
    assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None
    entries = [*want.prompt_logprobs[1:], *want.outputs[0].logprobs]
    assert got["token_logprobs"][1:] == pytest.approx([e.logprob for e in entries], abs=1e-4)
    assert [whole["text"].find(t, at) for t, at in zip(got["tokens"], got["text_offset"])] == got["text_offset"]
    parts = [c["choices"][0] for c in events(url + PATH, body)]
    assert "".join(p["text"] for p in parts) == whole["text"]
    assert [at for p in parts for at in p["logprobs"]["text_offset"]] == got["text_offset"]


@pytest.mark.parametrize("form", ["ab{}cd", "é{}{}é", "{}a", [70, None, 71]])
def test_offsets_count_special_tokens_as_they_are_echoed(form: Any, url: str, llm: LLM) -> None:
    """Special tokens of a prompt stand in its echo, so the tokens behind them begin after their text."""
    special, end = llm.text.tokenizer.eos_token, llm.text.tokenizer.eos_token_id
    prompt = form.replace("{}", special) if isinstance(form, str) else [end if i is None else i for i in form]
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "logprobs": 0, "echo": True}
    whole = post(url + PATH, body)[1]["choices"][0]
    got, text = whole["logprobs"], whole["text"]
    ends = [*got["text_offset"][1:], len(text)]
    shown = [text[at:end] for at, end in zip(got["text_offset"], ends)]
    assert "".join(shown) == text and shown.count(special) == text.count(special) > 0
    joined = [at for c in events(url + PATH, body) for at in c["choices"][0]["logprobs"]["text_offset"]]
    assert joined == got["text_offset"]


def test_no_tokens_with_echo_scores_the_prompt(url: str) -> None:
    status, answer = post(url + PATH, {"prompt": PROMPT, "max_tokens": 0, "logprobs": 1, "echo": True})
    choice = answer["choices"][0]
    assert (status, choice["text"], answer["usage"]["completion_tokens"]) == (200, PROMPT, 0)
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]


def test_usage_says_what_speculation_did(url: str, llm: LLM) -> None:
    body = {"prompt": "one two three one two three one", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    drafted = post(url + PATH, body | {"speculation": {"drafter": "model", "max_nodes": 3}})[1]["usage"]
    figures = drafted["speculation"]
    assert figures["drafter"] == "model" and 0 < figures["accepted"] <= figures["drafted"]
    assert figures["tau"] == pytest.approx(24 / figures["target_passes"]) and figures["tau"] > 1
    assert sum(figures["offered"]) == figures["drafted"] and sum(figures["kept"]) == figures["accepted"]
    assert len(figures["offered"]) <= 3
    plain = post(url + PATH, body | {"speculation": {"drafter": "none"}})[1]["usage"]
    assert (plain["speculation"]["drafted"], plain["speculation"]["target_passes"]) == (0, 24)
    again = post(url + PATH, body | {"prompt": "word " * 60})[1]["usage"]
    again = post(url + PATH, body | {"prompt": "word " * 60})[1]["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] > 0


def test_trace_says_who_wrote_what(url: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 1, "speculation": {"drafter": "model", "trace": True}}
    whole = post(url + PATH, body)[1]["choices"][0]
    parts = [c["choices"][0] for c in events(url + PATH, body)]
    for pieces in (whole["pieces"], [piece for part in parts for piece in part["pieces"]]):
        assert "".join(text for text, _ in pieces) == whole["text"]
        assert {author for _, author in pieces} == {"target", "model"}


def test_a_stream_ends_with_usage_when_asked(url: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "seed": 1}
    *chunks, last = events(url + PATH, body | {"stream_options": {"include_usage": True}})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    assert all(c["usage"] is None for c in chunks)
    assert all("usage" not in c for c in events(url + PATH, body))
    often = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = events(url + PATH, body | {"speculation": {"drafter": "none"}, "stream_options": often})
    so_far = [c["usage"]["completion_tokens"] for c in chunks]
    assert so_far == sorted(so_far) and so_far[-1] == 4 and chunks[-1]["usage"]["total_tokens"] > 4


def test_a_sample_without_a_token_left_is_an_error(url: str) -> None:
    body = {"prompt": PROMPT, "allowed_tokens": [5], "bad_words": [[5]], "max_tokens": 4}
    status, answer = post(url + PATH, body)
    assert status == 400 and "allowed_tokens and bad_words" in answer["error"]["message"]
    assert "allowed_tokens and bad_words" in events(url + PATH, body)[-1]["error"]["message"]


BODIES = st.fixed_dictionaries(
    {"prompt": st.sampled_from([PROMPT, "def f(x):\n    return", "naïve 東京 🙂", [40, 41, 42]]),
     "max_tokens": st.integers(1, 12), "seed": st.integers(0, 2**64 - 1)},
    optional={
        "n": st.integers(1, 3), "temperature": st.sampled_from([0, 0.5, 1, 1.7]),
        "top_p": st.sampled_from([0.3, 0.9, 1.0]), "top_k": st.integers(0, 20), "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]), "presence_penalty": st.sampled_from([-1, 0.5]),
        "frequency_penalty": st.sampled_from([-0.5, 1.5]), "stop": st.sampled_from(["e", [" the", "\n"], ["."]]),
        "logit_bias": st.sampled_from([{"20": 3.0}, {"225": -2, "40": 1.5}]),
        "bad_words": st.sampled_from([[" the"], [[225], "a"]]), "ignore_eos": st.booleans(),
        "include_stop": st.booleans(), "logprobs": st.integers(0, 3), "skip_special_tokens": st.booleans(),
    },
)  # fmt: skip
DRAFTERS = st.sampled_from(["auto", "none", "ngram", "model", "suffix", "topk", "ngram+topk"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES, drafter=DRAFTERS, stream=st.booleans())
def test_any_legal_body_gives_the_offline_text(url: str, llm: LLM, body: Any, drafter: str, stream: bool) -> None:
    words = {k: v for k, v in body.items() if k != "prompt"}
    if "logit_bias" in words:
        words["logit_bias"] = {int(k): v for k, v in words["logit_bias"].items()}
    want = [out.text for out in offline(llm, body["prompt"], **words).outputs]
    wish = {**body, "speculation": {"drafter": drafter}}
    if stream:
        got = [""] * len(want)
        for chunk in events(url + PATH, wish):
            got[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        status, answer = post(url + PATH, wish)
        assert status == 200, answer
        got = [choice.text for choice in CompletionShape.model_validate(answer).choices]
    assert got == want
