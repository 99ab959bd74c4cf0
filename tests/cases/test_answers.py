"""List A: answers that were wrong, each with the right one. `test_case_A1` is line A1, and so on."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from paceline import LLM, SamplingParams
from paceline.core.errors import CheckpointError, InputError
from paceline.core.grammar import Grammar
from paceline.core.request import TokenLogprob
from paceline.engine.conversation import RoleForm, form, shaped
from paceline.engine.detokenize import Detokenizer
from paceline.engine.pair import DEMO
from paceline.model.load import load_model
from paceline.sample.processors import BadWords, spellings
from paceline.serve.logprobs import Offsets, of_completion
from paceline.serve.prompts import nine, plain
from paceline.serve.protocol import ChatRequest, Message
from paceline.serve.syntax import MISTRAL
from paceline.serve.tokens import Tokens
from paceline.serve.voices import Named, Required, ids
from tests.serve.http import post
from tests.tiny import tiny_checkpoint

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@cache
def sentencepiece() -> PreTrainedTokenizerFast:
    """Tokens of words with and without a space before them, and of bytes."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        "▁",
        "▁Once",
        "▁upon",
        "▁a",
        "▁list",
        "list",
        "a",
        "A",
        "he",
        "▁he",
        "\n",
        "h",
        "e",
    ]
    vocab = {word: i for i, word in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    tokenizer = Tokenizer(
        models.BPE(vocab, [("h", "e"), ("▁", "he")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def text_of(tokenizer: Any, prompt: list[int], output: list[int], skip: bool = True) -> str:
    detokenizer = Detokenizer(tokenizer, skip, prompt)
    return "".join(map(detokenizer.push, output)) + detokenizer.finish()


def id_of(*words: str) -> list[int]:
    known = sentencepiece().get_vocab()
    return [known[word] for word in words]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    ("prompt", "output", "want"),
    [
        (["▁Once", "▁upon", "▁a"], ["▁list"], " list"),
        (["▁Once", "▁upon", "▁a"], ["list", "▁a"], "list a"),
        (["<s>", "▁Once"], ["▁upon"], " upon"),
        (["▁Once", "<0xF0>", "<0x9F>"], ["<0x99>", "<0x82>", "▁a"], "🙂 a"),
        (["▁Once", *(f"<0x{b:02X}>" for b in "東京東京東京".encode())], ["<0xE6>", "<0x9D>", "<0xB1>"], "東"),
        (["▁a"], ["▁", "▁list"], "  list"),
    ],
)
def test_case_A1(prompt: list[str], output: list[str], want: str, skip: bool) -> None:
    """The text of an answer is what it adds to its prompt."""
    tokenizer, before, after = sentencepiece(), id_of(*prompt), id_of(*output)
    assert text_of(tokenizer, before, after, skip) == want
    shown = tokenizer.decode(before, skip_special_tokens=skip).rstrip("\ufffd")
    assert tokenizer.decode(before + after, skip_special_tokens=skip) == shown + want


def test_case_A1_behind_tokens_that_are_not_shown() -> None:
    before = id_of("▁Once", *["<s>"] * 40)
    assert text_of(sentencepiece(), before, id_of("▁upon")) == " upon"
    assert text_of(sentencepiece(), id_of(*["<s>"] * 40), id_of("▁upon")) == "upon"


def eos(path: Path, name: str, value: Any) -> Path:
    """The checkpoint with another end of sequence in one of its files."""
    file = path / name
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {"eos_token_id": value}))
    return path


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_case_A2(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Ends of sequence that the model cannot draw are left out, and told of; no request ends the engine."""
    path = eos(tiny_checkpoint(tmp_path / "m", seed=1), name, [1, 320, 10**9, -5])
    if name == "config.json":
        (path / "generation_config.json").unlink(missing_ok=True)
    llm = LLM(path, dtype="float32", memory="100M")
    assert llm.engine.session.eos == {1} and "320" in caplog.text
    [out] = llm.generate([5, 6], SamplingParams(min_tokens=3, max_tokens=4, seed=1))
    assert len(out.token_ids) >= 3


@pytest.mark.parametrize("value", ["x", [None], [[1]], 1.5, {"a": 1}, True])
def test_case_A2_what_is_no_id_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id"):
        LLM(eos(tiny_checkpoint(tmp_path / "m"), "generation_config.json", value), dtype="float32", memory="100M")


@pytest.mark.parametrize("more", [{"temperature": "hot"}, {"top_k": -1}, {"top_p": 7}, {"repetition_penalty": [1]}])
def test_case_A2_defaults_that_no_request_could_have(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tiny_checkpoint(tmp_path / "m")
    (path / "generation_config.json").write_text(json.dumps(more))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: " + next(iter(more))):
        LLM(path, dtype="float32", memory="100M")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", r"a <\|user\|> b"),
        Grammar("lark", 'start: "<|end|>" "<|bos|>"'),
        Grammar("json_schema", '{"const": "<|assistant|>"}'),
    ],
)
@pytest.mark.parametrize("drafter", ["none", "model"])
def test_case_A3(llm: LLM, drafter: str, grammar: Grammar) -> None:
    """A grammar's text that a special token is written as is spelt with ordinary ones."""
    drafting = llm if drafter == "none" else LLM(dtype="float32", blocks=600)
    [out] = drafting.generate("x", SamplingParams(grammar=grammar, max_tokens=60, seed=1, drafter=drafter))
    want = {"regex": "a <|user|> b", "lark": "<|end|><|bos|>", "json_schema": '"<|assistant|>"'}[grammar.kind]
    assert (out.text, out.finish_reason) == (want, "stop")


PARTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% for p in m['content'] %}{% if p.type == 'text' %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endfor %}"
)
FIRST = "{% for m in messages %}<|{{ m.role }}|>{{ m.content[0].text }}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.text }})"
    "{% endfor %}{% endif %}{% endfor %}"
)
TEXTS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.fixture
def templated(tmp_path: Path) -> Any:
    """Makes the demo pair's tokenizer with another chat template."""
    from paceline.engine.text import Text

    def make(template: str) -> Text:
        path = tmp_path / "target"
        shutil.copytree(DEMO / "target", path, dirs_exist_ok=True)
        (path / "chat_template.jinja").write_text(template)
        return Text(path)

    return make


@pytest.mark.parametrize(
    ("template", "content", "want"),
    [
        (PARTS, "hello", "<|user|>hello"),
        (PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "<|user|>ab"),
        (FIRST, "hello", "<|user|>hello"),
        (FIRST, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "<|user|>a\nb"),
        (BOTH, "hello", "hello"),
        (BOTH, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "(a)(b)"),
        (TEXTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "<|user|>a\nb"),
        (NO_SYSTEM, "hello", "hello"),
    ],
)
def test_case_A4(templated: Any, template: str, content: Any, want: str) -> None:
    """Parts go to templates that read parts, a text is wrapped for them."""
    assert templated(template).render([{"role": "user", "content": content}]) == want


def test_case_A4_what_is_not_shown_is_refused(templated: Any) -> None:
    text = templated(NO_SYSTEM)
    with pytest.raises(InputError, match="role 'system'"):
        text.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}])


def test_case_A4_a_template_that_refuses_the_trial_reads_texts() -> None:
    def render(messages: Any) -> str:
        raise ValueError

    assert form(render, "user") == RoleForm(True, False)
    assert shaped({"role": "user", "content": None}, RoleForm(False, True))["content"] == [{"type": "text", "text": ""}]


def test_case_A5(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tied config with another head in the file: the head is used."""
    path = tiny_checkpoint(tmp_path / "m", vocab=96, with_tokenizer=False, tie_word_embeddings=True)
    file = path / "model.safetensors"
    tied = load_model(path, dtype="float32").weights.head
    weights = load_file(file)
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    load_model(path, dtype="float32")
    assert "lm_head" not in caplog.text
    save_file(weights | {"lm_head.weight": torch.randn(96, 32)}, file, {"format": "pt"})
    own = load_model(path, dtype="float32").weights.head
    assert "lm_head.weight" in caplog.text
    x = torch.randn(3, 32)
    assert not torch.allclose(own(x), tied(x))
    save_file(weights | {"lm_head.weight": torch.randn(95, 32)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_model(path, dtype="float32")


def test_case_A5_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, vocab=96, with_tokenizer=False, shard="20KB")
    one, two = sorted(path.glob("*.safetensors"))[:2]
    save_file(load_file(one) | load_file(two), two, {"format": "pt"})
    with pytest.raises(CheckpointError, match="both in"):
        load_model(path)


def test_case_A6() -> None:
    """Ids of forced calls are those that the template takes back."""
    for source in ("[TOOL_CALLS]", "[TOOL_CALLS] [ARGS]"):
        for voice in (Named("f", ids(source)), Required(ids(source))):
            deltas: list[Any] = voice.feed('{"name": "f", "arguments": {"a": 1}}')
            assert len(deltas[0].id) == 9 and deltas[0].id.isalnum()
    assert ids("<tool_call>")().startswith("call_") and ids("nothing")().startswith("call_")
    assert len(nine("call_" + "x" * 24)) == 9 and nine("abc123XYZ") == "abc123XYZ"


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}


def history(arguments: Any, **more: Any) -> list[Any]:
    function = {"name": "add", "arguments": arguments} if arguments is not None else {"name": "add"}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": function}], **more},
        {"role": "tool", "content": "7", "tool_call_id": "call_1"},
    ]


def test_case_A7(tools_client: OpenAI) -> None:
    """History as clients keep it: no arguments, a whole `model_dump()`, indices of streamed calls, nulls anywhere."""
    url = str(tools_client.base_url).removesuffix("/v1/")
    dump = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    for messages in (
        history(""), history("  "), history(None), history("{}", **dump), history('{"a": 1}', reasoning_content=None),
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache": None}], "name": None}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "refusal": "no", "annotations": []},
         {"role": "user", "content": "y"}],
    ):  # fmt: skip
        for call in messages[1].get("tool_calls", ()) if len(messages) > 1 else ():
            call["index"] = 0
        status, answer = post(url + CHAT, {"messages": messages, "max_tokens": 1})
        assert status == 200, answer


@pytest.mark.parametrize("broken", ['{"a": ', "[1]", '"x"', "nonsense"])
def test_case_A7_a_broken_call_is_shown_as_text(broken: str) -> None:
    message = Message.model_validate(history(broken)[1])
    shown = plain(message, "system")
    assert broken in shown["content"] and '"add"' in shown["content"] and "tool_calls" not in shown
    assert plain(message, "system", MISTRAL)["content"].startswith("[TOOL_CALLS]")


def test_case_A7_null_is_not_given_at_every_level() -> None:
    body = {
        "messages": [{"role": "user", "content": "x", "whatever": None}],
        "tools": [{"type": "function", "x": None,
                   "function": {"name": "f", "parameters": {"a": None}, "strict": None}}],
        "grammar": None, "speculation": {"drafter": None, "y": None},
    }  # fmt: skip
    made = ChatRequest.model_validate(body)
    assert made.tools is not None and made.tools[0].function.parameters == {"a": None}


def test_case_A8() -> None:
    """Only what was written, with and without one space before it."""
    letters = {chr(i): i for i in range(128)}

    def encode(text: str) -> list[int]:
        return [letters[c] for c in text]

    def words(*given: str) -> set[str]:
        return {"".join(map(chr, word)) for word in BadWords(encode).spell(given)}

    assert words("\nhe") == {"\nhe", " \nhe"}
    assert words("he") == words(" he") == {"he", " he"}
    assert words("  he") == {"  he", " he"} and words("\the ") == {"\the ", " \the "}
    assert words(" ") == {" "}
    with pytest.raises(InputError, match="is empty"):
        words("")
    inside = spellings(lambda text: sentencepiece().encode(text, add_special_tokens=False), "he")
    assert {tuple(id_of("he")), tuple(id_of("▁he"))} == set(inside)


def test_case_A9() -> None:
    """Two tokens of one text are told apart, and the drawn one keeps its own value."""
    tokens = Tokens(sentencepiece())
    plain_, byte = id_of("A", "<0x41>")
    assert tokens.text(plain_) == tokens.text(byte) == "A"
    for drawn, other in ((plain_, byte), (byte, plain_)):
        entry = TokenLogprob(drawn, -1.5, {other: -0.5, drawn: -1.5, id_of("list")[0]: -3.0})
        [top] = of_completion(tokens, [drawn], [entry], Offsets(Detokenizer(sentencepiece())))["top_logprobs"]
        assert top == {"A": -1.5, f"token_id:{other}": -0.5, "list": -3.0}


def test_case_A9_one_token_id_in_two_spellings(url: str) -> None:
    status, answer = post(url + COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 1, "05": 2}})
    assert status == 400 and "two spellings" in answer["error"]["message"]


BIG = 2**53 + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": BIG, "maximum": BIG}, {"const": BIG}, {"enum": [1, BIG]},
        {"const": [{"a": BIG}]},
        {"type": "integer", "exclusiveMaximum": 2**70}, {"type": "integer", "multipleOf": BIG}, {"const": 1e300},
        {"type": "object", "properties": {"a": {"items": {"minimum": -BIG}}}}, {"$defs": {"a": {"maximum": BIG}}},
    ],
)  # fmt: skip
def test_case_A10(schema: dict[str, Any]) -> None:
    """Numbers that would be rounded are refused by name."""
    with pytest.raises(InputError, match="exactly"):
        Grammar("json_schema", json.dumps(schema))


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63 - 1])
def test_case_A10_what_is_exact_is_served(llm: LLM, value: int) -> None:
    grammar = Grammar("json_schema", json.dumps({"type": "integer", "minimum": value, "maximum": value}))
    [out] = llm.generate("x", SamplingParams(grammar=grammar, max_tokens=40, seed=1))
    assert json.loads(out.text) == value


def test_case_A11(tmp_path: Path) -> None:
    """What the rope scaling stretches the context to can be asked for."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 1e4}
    path = tiny_checkpoint(tmp_path / "m", vocab=96, with_tokenizer=False, rope_parameters=yarn)
    assert load_model(path).max_len == 512
    assert load_model(path, max_len=2048).max_len == 2048
    with pytest.raises(CheckpointError, match=r"outside 1\.\.2048"):
        load_model(path, max_len=2049)
