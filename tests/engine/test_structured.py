"""Structured output of the demo pair: every answer parses and validates, and no drafter changes a text."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from paceline import LLM, Grammar, SamplingParams
from paceline.core.errors import InputError, RefusalError
from paceline.core.forest import Forest
from paceline.core.registry import refusal
from paceline.draft import DRAFTERS
from paceline.engine import drafters
from paceline.engine.prune import prune
from paceline.sample.grammar import Structure
from paceline.verify import VERIFIERS
from tests.sampling import sampled

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["cook", "pilot", "nurse"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 2},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "role", "next"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(PERSON))
PROMPT = 'People as JSON: {"name": "Tom", "age": 31, "role": "cook", "tags": ["a"], "next": null} '
PARAMS = SamplingParams(grammar=GRAMMAR, max_tokens=300, seed=5, drafter="none")
TEXT, LAW = (
    [
        (d, v)
        for d, offers in DRAFTERS.items()
        for v, accepts in VERIFIERS.items()
        if d != "none" and accepts.guarantee in kept and not refusal(d, offers, v, accepts, {"draft", "callable"})
    ]
    for kept in (("text",), ("distribution", "none"))
)


def copy_the_prompt(tokens: list[int], nodes: int) -> list[int]:
    """A user's drafter that continues as the prompt began: mostly what no grammar allows."""
    return tokens[1 : nodes + 1]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", drafter=copy_the_prompt, max_requests=16, blocks=600, nodes=8)


def answers(llm: LLM, params: SamplingParams) -> list[Any]:
    return llm.generate(PROMPT, params, progress=False)[0].outputs


def valid(answer: Any, schema: Any = PERSON) -> bool:
    """It ended by itself, parses and validates."""
    jsonschema.validate(json.loads(answer.text), schema)
    return bool(answer.finish_reason == "stop")


@pytest.fixture(scope="module")
def plain(llm: LLM) -> dict[float, list[list[int]]]:
    """The plain token ids, by temperature: one greedy answer, three sampled ones."""
    return {
        t: [a.token_ids for a in answers(llm, replace(PARAMS, temperature=t, n=n))] for t, n in ((0.0, 1), (1.0, 3))
    }


@pytest.mark.parametrize(("drafter", "verifier"), [*TEXT, ("ngram+topk", "exact")])
def test_no_drafter_changes_the_text(llm: LLM, plain: Any, drafter: str, verifier: str) -> None:
    for t, n in ((0.0, 1), (1.0, 3)):
        got = answers(llm, replace(PARAMS, temperature=t, n=n, drafter=drafter, verifier=verifier, max_nodes=8))
        assert [a.token_ids for a in got] == plain[t] and all(map(valid, got))
    assert llm.engine.drafters.errors == []


@pytest.mark.parametrize(("drafter", "verifier"), sampled(LAW, lambda cell: cell[0], lambda cell: cell[1]))
def test_every_answer_is_valid_under_rules_that_look_at_q(llm: LLM, plain: Any, drafter: str, verifier: str) -> None:
    got = answers(llm, replace(PARAMS, temperature=1.0, n=2, drafter=drafter, verifier=verifier, max_nodes=8))
    assert all(map(valid, got))
    [greedy] = answers(llm, replace(PARAMS, temperature=0.0, drafter=drafter, verifier=verifier))
    assert greedy.token_ids == plain[0.0][0]
    assert llm.engine.drafters.errors == []


def test_many_seeds(llm: LLM) -> None:
    """A dozen seeds in one batch, half of them hot; samples of one prompt differ."""
    wishes = [
        replace(
            PARAMS, temperature=(1.0, 1.6)[seed % 2], seed=seed, drafter=("topk", "model", "ngram", "none")[seed % 4]
        )
        for seed in range(12)
    ]
    outputs = llm.generate([PROMPT] * 12, wishes, progress=False)
    assert all(valid(output.outputs[0]) for output in outputs)
    assert len({output.text for output in outputs}) > 6


def test_other_kinds(llm: LLM) -> None:
    import regex

    date = r"(19|20)\d\d-(0[1-9]|1[0-2])"
    for grammar, holds in (
        (Grammar("regex", date), lambda text: regex.fullmatch(date, text)),
        (Grammar("lark", 'start: "yes" | "no" " but"? " " /[a-f]{3}/'), lambda text: text[:2] in ("ye", "no")),
        (Grammar("json_object"), lambda text: isinstance(json.loads(text), dict)),
    ):
        for t in (0.0, 1.0):
            params = replace(
                PARAMS, grammar=grammar, temperature=t, logit_bias={1: 4.0}, max_tokens=100, n=1 if t == 0 else 2
            )
            ended = [a for a in answers(llm, params) if a.finish_reason == "stop"]
            assert all(holds(a.text) for a in ended) and (ended or grammar.kind == "json_object")


def test_a_length_limit_may_cut_the_text(llm: LLM) -> None:
    [cut] = answers(llm, replace(PARAMS, temperature=0.0, max_tokens=9, drafter="model"))
    assert cut.finish_reason == "length" and len(cut.token_ids) == 9
    with pytest.raises(ValueError):
        json.loads(cut.text)


def test_log_probabilities_are_those_of_the_allowed_tokens(llm: LLM) -> None:
    [answer] = answers(llm, replace(PARAMS, grammar=Grammar("regex", "(yes|no)"), temperature=1.0, logprobs=20))
    first = answer.logprobs[0]
    text = llm.text.tokenizer
    assert {text.decode([t]) for t in first.top} <= {"y", "ye", "yes", "n", "no"}
    assert sum(2.718281828**x for x in first.top.values()) == pytest.approx(1.0, abs=1e-5)
    assert answer.logprobs[-1].token in llm.engine.session.eos and answer.logprobs[-1].logprob == pytest.approx(0.0)


@pytest.mark.parametrize("drafter", ["none", "model", "topk", "ngram", "user"])
def test_a_conflict_fails_its_request_alone_and_names_the_pair(llm: LLM, drafter: str) -> None:
    base = replace(PARAMS, grammar=Grammar("regex", "ab"), temperature=1.0, drafter=drafter)
    letter = [llm.text.tokenizer.encode(x, add_special_tokens=False)[0] for x in ("a", "ab")]
    wishes = [
        replace(base, min_tokens=20),
        replace(base, logit_bias=dict.fromkeys(letter, float("-inf"))),
        base,
    ]
    outputs = llm.generate([PROMPT] * 3, wishes, progress=False)
    assert [o.finish_reason for o in outputs] == ["error", "error", "stop"] and outputs[2].text == "ab"
    errors = [o.outputs[0].error for o in outputs]
    assert "after grammar and min_tokens" in errors[0] and "after grammar and logit_bias" in errors[1]


def test_the_door(llm: LLM) -> None:
    """Refused before anything is queued."""
    with pytest.raises(InputError, match="Unsatisfiable schema"):
        Grammar("json_schema", '{"type": "string", "minLength": 2, "maxLength": 1}')
    with pytest.raises(InputError, match="allows no text at all"):
        answers(llm, replace(PARAMS, grammar=Grammar("lark", "start: start")))
    with pytest.raises(RefusalError, match="grammar and ignore_eos"):
        replace(PARAMS, ignore_eos=True)
    assert not llm.engine.busy


HAVE = {"draft", "draft:program", "target:program"}
KEEPERS = [d for d, c in DRAFTERS.items() if c.group and {need.name for need in c.needs} <= HAVE]


@pytest.mark.parametrize(("drafter", "impossible"), [("user", True), *((d, False) for d in KEEPERS)])
def test_no_impossible_guess_costs_a_row(
    llm: LLM, drafter: str, impossible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses that nobody masked are pruned; drafters with a cache of their own draw none, so their rows stay put."""
    went: list[int] = []

    def count(part: Forest, *args: Any) -> Forest:
        out = prune(part, *args)
        went.append(len(part) - len(out))
        return out

    monkeypatch.setattr(drafters, "prune", count)
    got = answers(llm, replace(PARAMS, temperature=1.0, n=3, drafter=drafter, max_nodes=8))
    assert (sum(went) > 0) is impossible
    assert (sum(a.stats.drafted for a in got) > 0) or impossible


def test_without_the_mask_the_answers_are_no_json(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: it is the mask that makes the demo pair write JSON."""
    monkeypatch.setattr(Structure, "apply", lambda self, states, logits: logits)
    [answer] = answers(llm, replace(PARAMS, temperature=1.0, max_tokens=40))
    with pytest.raises(ValueError):
        json.loads(answer.text)
