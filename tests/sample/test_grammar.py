"""Masks against a parser of their own for every path, and what ends, gives up or cannot be compiled."""

import gc
import random
import re
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from paceline.core.errors import InputError, RefusalError
from paceline.core.grammar import Grammar
from paceline.sample import grammar as module
from paceline.sample.grammar import CompiledGrammar, Grammars, Parse, Place, Structure, vocabulary
from paceline.sample.sampler import Sampler
from tests.sample.cases import GRAMMARS, LETTERS, V, admitted, request
from tests.tiny import letters, trained

INF = float("inf")
NESTED = Grammar("lark", 'start: item+\nitem: "b" item* "c" | /[d-g]{1,3}x/')
"""Brackets, so that the parser has a stack."""
BYTES = 320
EOS = 1


def bytes_bpe() -> Any:
    """A byte-level BPE as transformers loads it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=trained(BYTES), eos_token="<eos>")


def sentencepiece() -> Any:
    """A tokenizer of the Llama 2 kind: words begin with U+2581, what is not in the vocabulary is spelled by bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<eos>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def start(grammar: Grammar, grammars: Grammars = GRAMMARS, **params: Any) -> Place:
    place = Structure(grammars).start(request(grammar=grammar, **params))
    assert place is not None
    return place


def go(place: Place, tokens: Any) -> Place:
    for token in tokens:
        place = Place(place.parse, place, token)
    return place


def allowed(place: Place) -> set[int]:
    return set(place.parse.mask(place).nonzero()[:, 0].tolist())


def by_itself(grammar: Grammar, path: tuple[int, ...]) -> set[int]:
    """What may follow `path`, by a parser that has seen nothing else."""
    parser = GRAMMARS.compile(grammar).parser.deep_copy()
    for token in path:
        if token == 0 or not parser.try_consume_tokens([token]):
            return {0}
    bits = np.unpackbits(np.frombuffer(parser.compute_bitmask(), np.uint8), bitorder="little")
    return set(bits[:V].nonzero()[0].tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_any_walk_over_a_tree_gives_each_path_its_own_mask(seed: int, forgetful: bool) -> None:
    """Paths of one tree, possible and impossible ones, in random order and again: siblings do not see one another."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MASKS", 1 if forgetful else module.MASKS)
        places = {(): start(NESTED)}
        for _ in range(40):
            path = rng.choice(list(places))
            fit = sorted(by_itself(NESTED, path))
            token = rng.choice(fit) if rng.random() < 0.9 else rng.randrange(V)
            places.setdefault((*path, token), go(places[path], [token]))
        for _ in range(3):
            order = list(places)
            rng.shuffle(order)
            for path in order:
                assert allowed(places[path]) == by_itself(NESTED, path), path
        assert len(places[()].parse._masks) <= module.MASKS


def test_the_end_is_allowed_exactly_where_the_text_is_complete() -> None:
    place = start(Grammar("regex", "bc|bcdd"))
    b, c, d = (LETTERS.index(letter) for letter in "bcd")
    masks = [allowed(go(place, path)) for path in ([], [b], [b, c], [b, c, d], [b, c, d, d])]
    assert masks == [{b}, {c}, {0, d}, {d}, {0}]
    for after in ([b, c, 0], [b, c, 0, 0], [b, c, 0, d], [b, c, d, d, d], [c], [c, b]):
        assert allowed(go(place, after)) == {0}, "after the end, and after what cannot be, nothing but the end"


def test_every_end_of_sequence_ends() -> None:
    both = Grammars(lambda: vocabulary(letters(LETTERS), V, [0, 5]), V)
    root = Place(Parse(partial(both.compile, Grammar("regex", "b?")), V, [0, 5]))
    assert allowed(root) == {0, 1, 5} and allowed(go(root, [1])) == {0, 5} == allowed(go(root, [5]))


def test_an_end_of_sequence_with_text_is_no_text() -> None:
    """A checkpoint may end its texts with a token that its tokenizer has as an ordinary one."""
    x = LETTERS.index("x")
    ordinary = Grammars(lambda: vocabulary(letters(LETTERS), V, [x]), V)
    root = Place(Parse(partial(ordinary.compile, Grammar("regex", "[b-x]{2}")), V, [x]))
    assert x not in allowed(root) and x not in allowed(go(root, [1])) and allowed(go(root, [1, 1])) == {x}


@pytest.mark.parametrize("size", [BYTES - 10, BYTES, BYTES + 24])
def test_vocabularies_larger_and_smaller_than_the_models(size: int) -> None:
    """A model's logits may be padded, and its tokenizer may have ids that the model lacks."""
    tokenizer = bytes_bpe()
    grammars = Grammars(lambda: vocabulary(tokenizer, size, [EOS]), size)
    mask = Place(Parse(partial(grammars.compile, Grammar("regex", "(.|\n)*")), size, [EOS])).parse
    bits = mask.mask(Place(mask))
    own = min(size, len(tokenizer))
    assert bits.shape == (size,) and bits[EOS] and not bits[own:].any()
    assert {i for i in range(own) if not bits[i]} >= {0, 2, 3, 4}, "special tokens are not text"
    assert bits[:own].sum() > own // 3


@pytest.mark.parametrize("make", [bytes_bpe, sentencepiece])
def test_what_a_tokenizer_spells_is_what_the_grammar_reads(make: Any) -> None:
    """Random texts of allowed tokens are texts of the language, character by character, also beyond ASCII."""
    import regex

    tokenizer, rng, pattern = make(), random.Random(0), "(ab? |é(東|b)){2,4}c"
    size = len(tokenizer)
    grammars = Grammars(lambda: vocabulary(tokenizer, size, [EOS]), size)
    for _ in range(30):
        root = place = Place(Parse(partial(grammars.compile, Grammar("regex", pattern)), size, [EOS]))
        path: list[int] = []
        while True:
            token = rng.choice(sorted(allowed(place)))
            if token == EOS:
                break
            path, place = [*path, token], go(place, [token])
        words = [tokenizer.decode([t]) if t > 257 else "" for t in path]
        text = tokenizer.backend_tokenizer.decode(path)
        assert regex.fullmatch(pattern, text), (text, words)
        assert allowed(root) == allowed(go(root, []))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("make", [bytes_bpe, sentencepiece])
def test_case_F9_texts_of_added_tokens_are_spelled(make: Any, special: bool) -> None:
    """Qwen's tokenizer has <tool_call> as an added token that is not special: a grammar that has this text can be
    answered, token by token, and only by it."""
    from tokenizers import AddedToken

    tokenizer, rng, pattern = make(), random.Random(0), r"<tool_call>\{(a|b)*\}</tool_call>"
    marks = ["<tool_call>", "</tool_call>"]
    tokenizer.add_tokens(
        [AddedToken(mark, special=special, normalized=False) for mark in marks], special_tokens=special
    )
    size = len(tokenizer)
    added = {tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    grammars = Grammars(lambda: vocabulary(tokenizer, size, [EOS]), size)
    for _ in range(20):
        place = Place(Parse(partial(grammars.compile, Grammar("regex", pattern)), size, [EOS]))
        path: list[int] = []
        while True:
            choice = allowed(place)
            assert choice and len(path) < 300, "the grammar has no way on"
            assert not special or not choice & added
            token = EOS if EOS in choice else rng.choice(sorted(choice))
            if token == EOS:
                break
            path, place = [*path, token], go(place, [token])
        text = tokenizer.backend_tokenizer.decode(path, skip_special_tokens=False)
        assert re.fullmatch(pattern, text), text


def test_a_tokenizer_that_cannot_serve_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "<eos>": 1}, "a")))
    with pytest.raises(RefusalError, match="grammar cannot be served with this tokenizer"):
        vocabulary(words, 2, [1])
    with pytest.raises(RefusalError, match="needs a fast tokenizer, but this one is object"):
        vocabulary(object(), 2, [1])
    with pytest.raises(InputError, match="no tokenizer"):
        Sampler(V).admit(request(grammar=NESTED))


@pytest.mark.parametrize(
    "grammar", [Grammar("lark", "start: start"), Grammar("regex", r"b[^\s\S]"), Grammar("regex", "Z")]
)
def test_a_language_without_any_text_is_refused(grammar: Grammar) -> None:
    with pytest.raises(InputError, match="allows no text at all"):
        GRAMMARS.compile(grammar)


def test_compiled_once_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_GRAMMAR_BYTES", 2 * module.EACH + 2000)
    monkeypatch.setattr(module, "resident", lambda: 0)
    made: list[int] = []
    grammars = Grammars(lambda: made.append(1) or vocabulary(letters(LETTERS), V, [0]), V)  # type: ignore[func-returns-value]
    assert made == []
    first = grammars.compile(NESTED)
    assert grammars.compile(NESTED) is first and made == [1]
    assert grammars.compile(NESTED, tenant="b") is not first, "a time would tell what another tenant sent"
    for text in "bcd":
        grammars.compile(Grammar("regex", text))
    assert len(grammars._kept) == 2 and NESTED not in grammars._kept
    assert grammars.compile(NESTED) is first, "a reference keeps it"
    was = id(first)
    del first
    for text in "bcd":
        grammars.compile(Grammar("regex", text))
    assert id(grammars._held.get(NESTED)) != was and made == [1]


def test_grammars_of_one_client_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "resident", lambda: 0)
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 8 * module.EACH)
    monkeypatch.setattr(module, "IDLE_GRAMMAR_BYTES", 4 * module.EACH)
    grammars = Grammars(lambda: vocabulary(letters(LETTERS), V, [0]), V)
    mine = grammars.compile(Grammar("regex", "b"), client="mine")
    held: list[CompiledGrammar] = []
    while not grammars.full("theirs") and len(held) < 20:
        text = "c" * (len(held) + 1)
        held.append(grammars.compile(Grammar("regex", text), tenant=f"salt {len(held)}", client="theirs"))
    assert len(held) == 4 and not grammars.full("mine") and not grammars.full("new")
    assert mine in grammars._kept.values(), "who has most loses the oldest"
    held.clear()
    assert not grammars.full("theirs")


def limited(states: int) -> Parse:
    """Parse with a limit of lexer states; this expression needs a new one for nearly every text."""
    tokenizer = vocabulary(letters(LETTERS), V, [0])
    source = Grammar("regex", "(b|c)*b(b|c){12}").source()
    limits = LLParserLimits(max_lexer_states=states, precompute_large_lexemes=False)
    made: list[CompiledGrammar] = []

    def compile(fresh: bool) -> CompiledGrammar:
        if fresh or not made:
            made.append(CompiledGrammar(LLMatcher(tokenizer, source, limits=limits, log_level=0), 0))
        return made[-1]

    return Parse(compile, V, [0])


def walk(parse: Parse, count: int, seed: int) -> list[Place]:
    rng, place = random.Random(seed), Place(parse)
    return [place := Place(parse, place, rng.choice((1, 2))) for _ in range(count)]


def test_a_parser_that_gives_up_empties_the_row_and_says_why() -> None:
    """llguidance itself would say: nothing but the end of sequence."""
    parse = limited(20)
    masks = [parse.mask(place) for place in walk(parse, 30, 0)]
    assert not masks[-1].any() and "too many states" in (parse.failure or "")
    r = request(grammar=NESTED)
    sampler = admitted(r)
    state = sampler._slots[r.id].paths[()][0]
    state.parse._compile = parse._compile
    state.parse._restart(True)
    last = go(state, [place.token for place in walk(parse, 30, 0)])
    sampler._slots[r.id].paths[()] = (last,)
    scores = sampler.scores([(r, ())], torch.zeros(1, V))
    assert (scores == -INF).all() and sampler.draw([(r, ())], scores, [0]) == [-1]
    assert "The grammar's parser gave up (lexer error: too many states" in sampler.empty_message(r)


def test_a_parser_goes_with_the_last_of_its_places() -> None:
    """A parser may hold hundreds of megabytes: it does not wait for the garbage collector."""
    parse = limited(100)
    last = walk(parse, 5, 0)[-1]
    parse.mask(last)
    gone = weakref.ref(parse)
    gc.disable()
    try:
        del parse, last
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ["(a{1000}){1000}e", "(a{500}b{500}){1000}e", "a{30000}"])
def test_a_lexer_that_gives_up_at_once_is_refused_when_compiled(text: str) -> None:
    """It refuses a token of its own mask, without a word; the engine's thread would find out."""
    with pytest.raises(InputError, match="too complex"):
        GRAMMARS.compile(Grammar("regex", text))


def test_limits_that_other_paths_used_up_do_not_count() -> None:
    """Masks depend on the place alone, whatever drafts were looked at before."""
    calm = limited(100)
    want = [calm.mask(place) for place in walk(calm, 20, 0)]
    assert calm.failure is None and all(mask.any() for mask in want)
    busy = limited(100)
    for seed in range(1, 12):
        for place in walk(busy, 20, seed):
            busy.mask(place)
    again = walk(busy, 20, 0)
    assert all(torch.equal(busy.mask(place), mask) for place, mask in zip(again, want)) and busy.failure is None
    cold = walk(busy, 20, 99)[-1]
    assert busy.mask(cold).any(), "a place whose parents were never asked for"


def test_the_message_names_the_pair_that_leaves_nothing() -> None:
    """min_tokens after the grammar's end; a bias and allowed tokens against its only token."""
    one = Grammar("regex", "b")
    for params, output, names in (
        ({"min_tokens": 3}, [1], "grammar and min_tokens"),
        ({"logit_bias": {1: -INF}}, [], "grammar and logit_bias"),
        ({"allowed_tokens": [2]}, [], "grammar and allowed_tokens"),
        ({"bad_words": [[1]]}, [], "grammar and bad_words"),
    ):
        r = request(grammar=one, output=output, **params)
        sampler = admitted(r)
        scores = sampler.scores([(r, ())], torch.zeros(1, V))
        assert sampler.draw([(r, ())], scores, [0]) == [-1]
        assert (
            sampler.empty_message(r)
            == f"No token is left to draw after {names}: allow more tokens or remove one of them."
        )


def test_masks_come_before_filters() -> None:
    """top_k 1 takes the likeliest of what the grammar allows."""
    r = request(grammar=Grammar("regex", "[bc]"), top_k=1)
    scores = admitted(r).scores([(r, ())], torch.arange(V, dtype=torch.float32)[None])
    assert scores[0].exp().nonzero()[:, 0].tolist() == [LETTERS.index("c")]


def test_possible_is_the_mask() -> None:
    r, free = request(0, grammar=Grammar("regex", "bc")), request(1)
    sampler = admitted(r, free)
    assert [sampler.possible(r, (1,), token) for token in (0, 1, 2)] == [False, False, True]
    assert sampler.possible(free, (1,), 1)


def test_a_model_without_an_end_of_sequence_is_refused() -> None:
    r = request(grammar=NESTED)
    r.eos = frozenset()
    with pytest.raises(RefusalError, match="without an end of sequence"):
        admitted(r)
