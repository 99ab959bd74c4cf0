"""The offline face: results, streaming, chat, samples, log-probabilities, refusals."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.cache.lease import TARGET
from paceline.core.errors import CapacityError, CheckpointError, InputError, PacelineError, RefusalError
from paceline.engine.desk import lease_of
from paceline.engine.ids import check_defaults
from tests.tiny import save_tokenizer, tiny_checkpoint

PROMPT = "one two three one two three one"
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
KEYS_OF_DRAWING: tuple[tuple[str, Any], ...] = (
    ("begin_suppress_tokens", [5]), ("no_repeat_ngram_size", 3), ("suppress_tokens", 5), ("typical_p", 0.9),
    ("min_new_tokens", 4), ("stop_strings", ["x"]), ("num_beams", 4), ("guidance_scale", 1.5),
    ("watermarking_config", {"bias": 2.5}), ("dola_layers", "high"),
    ("force_words_ids", [[5]]), ("constraints", [{}]), ("num_beam_groups", 2), ("diversity_penalty", 0.5),
)  # fmt: skip
"""What a generation config may say that is not served."""


def test_results_come_in_order_and_say_what_happened(llm: LLM) -> None:
    prompts = [PROMPT, [5, 6, 7], "x"]
    outputs = llm.generate(prompts, GREEDY, progress=False)
    assert [o.prompt for o in outputs] == [PROMPT, None, "x"]
    assert outputs[1].prompt_token_ids == [5, 6, 7]
    for output in outputs:
        assert len(output.token_ids) == 16 and output.finish_reason == "length"
        assert output.stats.generated == 16 and output.stats.passes <= 16
        assert output.stats.tau == 16 / output.stats.passes
        assert sum(output.outputs[0].drafted) == output.stats.accepted
        assert output.text == llm.text.tokenizer.decode(output.token_ids, skip_special_tokens=True)


def test_one_prompt_is_one_result(llm: LLM) -> None:
    assert len(llm.generate(PROMPT, GREEDY, progress=False)) == 1
    assert len(llm.generate([5, 6, 7], GREEDY, progress=False)) == 1


def test_the_seed_is_returned_and_repeats_the_text(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12)
    first = llm.generate(PROMPT, params, progress=False)[0]
    again = llm.generate(PROMPT, dataclasses.replace(params, seed=first.seed), progress=False)[0]
    other = llm.generate(PROMPT, params, progress=False)[0]
    assert again.token_ids == first.token_ids
    assert other.seed != first.seed


def test_resubmitting_prompt_and_output_continues_the_text(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3, ignore_eos=True)
    whole = llm.generate([5, 6, 7], params, progress=False)[0].token_ids
    rest = llm.generate([5, 6, 7, *whole[:8]], dataclasses.replace(params, max_tokens=12), progress=False)[0]
    assert rest.token_ids == whole[8:]


def test_samples_differ_and_share_their_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=8, n=4, seed=1, ignore_eos=True)
    llm.engine.cache.drop_prefix()
    output = llm.generate(PROMPT * 3, params, progress=False)[0]
    assert len({tuple(c.token_ids) for c in output.outputs}) > 1
    assert [c.index for c in output.outputs] == [0, 1, 2, 3]
    assert output.outputs[0].stats.cached == 0
    assert all(c.stats.cached > 0 for c in output.outputs[1:])


def test_samples_share_whatever_group_the_next_request_would_get(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a draft model is of no use, a request now and then keeps its K/V again."""
    turns = iter([[TARGET], *[[TARGET, *llm.engine.cache.groups]] * 3])
    monkeypatch.setattr(llm.engine.desk.table, "groups", lambda request: next(turns))
    llm.engine.cache.drop_prefix()
    output = llm.generate(PROMPT * 3, SamplingParams(max_tokens=8, n=4, seed=1, ignore_eos=True), progress=False)[0]
    assert [c.stats.cached > 0 for c in output.outputs] == [False, True, True, True]


def test_stream_adds_up_to_generate(llm: LLM) -> None:
    for drafter in ("none", "ngram", "model"):
        params = dataclasses.replace(GREEDY, max_tokens=24, drafter=drafter)
        chunks = list(llm.stream(PROMPT, params))
        want = llm.generate(PROMPT, params, progress=False)[0]
        assert "".join(c.text for c in chunks) == want.text
        assert [t for c in chunks for t in c.token_ids] == want.token_ids
        assert "".join(piece for c in chunks for piece, _ in c.pieces) == want.text
        assert [c.done is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]


def test_closing_a_stream_aborts_it(llm: LLM) -> None:
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.busy
    llm.engine.cache.check_integrity()


def test_a_stop_string_ends_the_text_inside_an_accepted_run(llm: LLM) -> None:
    text = llm.generate(PROMPT, GREEDY, progress=False)[0].text
    stop = text[len(text) // 2 :][:3]
    for drafter in ("none", "ngram", "model"):
        params = dataclasses.replace(GREEDY, stop=stop, drafter=drafter)
        output = llm.generate(PROMPT, params, progress=False)[0]
        assert output.finish_reason == "stop"
        assert output.text == text[: text.index(stop)]
        assert output.stats.accepted == sum(output.outputs[0].drafted) <= output.stats.generated


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    output = llm.chat(messages, GREEDY, progress=False)[0]
    assert output.prompt_token_ids == llm.text.chat(messages)
    two = llm.chat([messages, messages], GREEDY, progress=False)
    assert [o.token_ids for o in two] == [output.token_ids] * 2


def dense_logprobs(llm: LLM, tokens: list[int]) -> torch.Tensor:
    """log p [T, V] of a text by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llm.text.path, dtype=torch.float32).eval()
    with torch.no_grad():
        return torch.as_tensor(model(torch.tensor([tokens])).logits[0]).log_softmax(-1)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_logprobs_are_the_targets(llm: LLM, drafter: str) -> None:
    params = dataclasses.replace(GREEDY, logprobs=3, prompt_logprobs=2, drafter=drafter)
    output = llm.generate([5, 6, 7, 5, 6, 7, 5, 6], params, progress=False)[0]
    prompt, tokens = output.prompt_token_ids, output.token_ids
    want = dense_logprobs(llm, prompt + tokens)
    entries = output.outputs[0].logprobs
    assert entries is not None and len(entries) == len(tokens)
    for i, entry in enumerate(entries):
        row = want[len(prompt) + i - 1]
        assert entry.token == tokens[i]
        assert entry.logprob == pytest.approx(float(row[tokens[i]]), abs=1e-3)
        assert list(entry.top) == row.topk(3).indices.tolist()
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for i, known in enumerate(output.prompt_logprobs[1:], start=1):
        assert known is not None and known.token == prompt[i]
        assert known.logprob == pytest.approx(float(want[i - 1, prompt[i]]), abs=1e-3)


def test_tokens_that_are_never_drawn(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Those of generation_config.json, whatever drafts and whatever a request adds to their logits; ids that the model
    cannot draw say nothing, and other keys that choose tokens are refused."""
    target = shutil.copytree(pair[0], tmp_path / "target")
    config = target / "generation_config.json"
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def made(settings: dict[str, object], most: int = 3) -> list[list[int]]:
        config.write_text(json.dumps(settings))
        llm = LLM(target, dtype="float32", blocks=64, block_size=4)
        each = [dataclasses.replace(greedy, drafter=it) for it in ("none", "ngram")]
        each.append(dataclasses.replace(greedy, logit_bias={most: 99.0}))
        return [list(it.token_ids) for it in llm.generate(["one two three one two"] * 3, each, progress=False)]

    plain = made({})[0]
    never = sorted({*plain})
    one, other, biased = made({"suppress_tokens": [*never, 10**6]}, never[0])
    assert one == other and not {*one, *biased} & {*never}
    for key, value in KEYS_OF_DRAWING:
        with pytest.raises(CheckpointError, match=key):
            check_defaults({key: value}, target, 320)
    usual = {"begin_suppress_tokens": [], "no_repeat_ngram_size": 0, "typical_p": 1.0, "num_beams": 1, "min_length": 0}
    check_defaults(usual | {"max_length": 20, "max_new_tokens": 256, "cache_implementation": "hybrid"}, target, 320)


def test_defaults_come_from_the_generation_config(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path / "defaults", seed=1)
    (target / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 4, "eos_token_id": [1, 9]}')
    llm = LLM(target, dtype="float32", memory="100M")
    params = llm._resolve(None)
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 4, 1.0)
    assert llm._resolve(SamplingParams(temperature=0)).temperature == 0
    assert llm.engine.session.eos == {1, 9}


def test_default_drafters(pair: tuple[Path, Path]) -> None:
    """The planner chooses among what the engine has, from the first request on."""
    for given, arms in ((pair[:1], ("ngram",)), (pair, ("ngram", "model", "ngram+topk"))):
        llm = LLM(*given, dtype="float32", memory="100M")
        (request,) = llm.engine.submit([5, 6], GREEDY)
        assert (request.drafter, request.arms) == ("auto", arms) and llm.engine.table.times.seen > 0


def test_a_choice_of_ones_own(pair: tuple[Path, Path]) -> None:
    """`a|b` as the engine's drafter: the text is plain, and nobody else drafts."""
    plain = LLM(pair[0], drafter="none", dtype="float32", blocks=600).generate(PROMPT, GREEDY, progress=False)[0]
    llm = LLM(*pair, "model|topk", dtype="float32", blocks=600)
    assert llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids == plain.token_ids
    assert set(llm.engine.desk.totals.drafters) <= {"none", "model", "topk"} and llm.engine.table.times.seen > 0
    with pytest.raises(InputError, match="is not valid"):
        LLM(*pair, "model|none", dtype="float32", blocks=600)
    with pytest.raises(RefusalError, match="needs a draft model"):
        LLM(pair[0], drafter="ngram|model", dtype="float32", blocks=600)


def test_most_requests_do_without_the_kv_of_drafters_of_no_use(pair: tuple[Path, Path]) -> None:
    """Known to bring nothing, they are read for nobody; the text of all is plain."""
    plain = LLM(pair[0], drafter="none", dtype="float32", blocks=600).generate(PROMPT, GREEDY, progress=False)[0]
    engine = LLM(*pair, "model|topk", dtype="float32", blocks=600).engine
    for key in (("model", 0), ("topk", 16), ("topk", 8)):
        for request in range(40):
            engine.desk.policy.beliefs.observe(-1 - request, key, 4, [1] * 4, [])
    requests = [engine.submit(plain.prompt_token_ids, GREEDY)[0] for _ in range(3)]
    engine.step()
    assert not any(lease_of(r).groups > {TARGET} for r in requests)
    while engine.busy:
        engine.step()
    assert all(r.output == plain.token_ids for r in requests)
    assert all(set(r.authors) <= {None} for r in requests)


def test_a_user_drafter_is_used_and_when_it_fails_the_text_stands(pair: tuple[Path, Path]) -> None:
    plain = LLM(pair[0], drafter="none", dtype="float32", memory="100M").generate(PROMPT, GREEDY, progress=False)[0]
    tokens = LLM(pair[0], drafter="none", dtype="float32", memory="100M").text.encode(PROMPT) + plain.token_ids

    def oracle(text: list[int], nodes: int) -> list[int]:
        return tokens[len(text) : len(text) + nodes]

    def broken(text: list[int], nodes: int) -> list[int]:
        raise ValueError("no idea")

    def nonsense(text: list[int], nodes: int) -> list[int]:
        return [10**6]

    good = LLM(pair[0], drafter=oracle, dtype="float32", memory="100M").generate(PROMPT, GREEDY, progress=False)[0]
    assert good.token_ids == plain.token_ids and good.stats.tau > 3
    for bad in (broken, nonsense):
        llm = LLM(pair[0], drafter=bad, dtype="float32", memory="100M")
        assert llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids == plain.token_ids
        assert len(llm.engine.drafters.errors) == 1


def test_a_failing_processor_fails_its_request_only(llm: LLM) -> None:
    def bad(prompt: Any, output: Any, logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("oops")

    each = [GREEDY, dataclasses.replace(GREEDY, processors=(bad,)), dataclasses.replace(GREEDY, allowed_tokens=(7,))]
    each.append(dataclasses.replace(GREEDY, allowed_tokens=(7,), bad_words=((7,),)))
    outputs = llm.generate([PROMPT] * 4, each, progress=False)
    assert [o.finish_reason for o in outputs] == ["length", "error", "length", "error"]
    assert "oops" in str(outputs[1].outputs[0].error) and "allowed_tokens" in str(outputs[3].outputs[0].error)
    assert outputs[0].token_ids == llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids
    assert set(outputs[2].token_ids) == {7}


@pytest.mark.parametrize(
    ("prompt", "params", "error", "words"),
    [
        ([], {}, InputError, "empty"),
        ([5] * 5000, {}, InputError, "context"),
        ([5, 10**6], {}, InputError, "1000000"),
        ([5], {"drafter": "nope"}, InputError, "nope"),
        ([5], {"verifier": "nope"}, InputError, "nope"),
        ([5], {"drafter": "user"}, RefusalError, "function"),
        ([5], {"logit_bias": {10**6: 1.0}}, InputError, "1000000"),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_lost(
    llm: LLM, prompt: list[int], params: dict[str, Any], error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error, match=words):
        llm.generate([[5, 6], prompt], [GREEDY, dataclasses.replace(GREEDY, **params)], progress=False)
    assert not llm.engine.busy
    assert len(llm.generate([5, 6], GREEDY, progress=False)[0].token_ids) == 16


def test_bad_engines_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = pair
    other = tiny_checkpoint(tmp_path / "other", vocab=400, with_tokenizer=False)
    save_tokenizer(other, 280)
    with pytest.raises(RefusalError, match="vocabulary"):
        LLM(target, other, drafter="model", memory="100M")
    with pytest.raises(RefusalError, match="draft=PATH"):
        LLM(target, drafter="model", memory="100M")
    with pytest.raises(CapacityError, match="give at least"):
        LLM(target, memory=10)
    with pytest.raises(InputError, match="2G"):
        LLM(target, memory="lots")
    with pytest.raises(CheckpointError):
        LLM(tmp_path / "nowhere", memory="100M")
    with pytest.raises(RefusalError, match="chains only"):
        LLM(target, drafter=lambda text, nodes: [], verifier="chain", memory="100M")


def test_a_request_beyond_the_cache_is_refused(pair: tuple[Path, Path]) -> None:
    llm = LLM(pair[0], dtype="float32", blocks=8, block_size=4)
    with pytest.raises(CapacityError, match="memory"):
        llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=10_000), progress=False)
