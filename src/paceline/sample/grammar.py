"""Structured output: the mask of an llguidance grammar at every node of a token tree.

A state is a `Place`, a link to the place before it and a token; it is a value and costs nothing. The parser is one per
request and stands at one place. When the mask of another is wanted it goes back to the last place they share and
forward from there, so that siblings never see one another. (A copy of the parser for each node would be another sound
form; it copies the whole parse so far, a quarter of a megabyte after 1,500 tokens of JSON.)

The end of sequence is allowed exactly where the text so far is complete, and after it nothing else is.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from math import inf
from mmap import PAGESIZE
from pathlib import Path
from threading import Lock
from time import thread_time
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import InputError, RefusalError
from paceline.core.grammar import Grammar, brief, limits
from paceline.core.request import Request

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from paceline.sample.mask_turns import MaskTurns

MASKS = 128
"""Masks that a request keeps: those of a step, asked for by its drafter and by its verification."""
IDLE_GRAMMAR_BYTES = 128 << 20
"""Bytes of the compiled grammars that an engine keeps for later requests."""
EACH, PER_CHARACTER = 1 << 20, 64
"""Bytes that one of them takes at least, and more for each character of its text."""
MAX_HELD_BYTES = 1 << 30
"""Bytes of all those that requests hold. Those of a client take no more than all together leave free."""
PROBE_TOKENS = 8
"""Tokens that a new grammar is tried with."""
PARSER_RESTARTS = 2
"""How often the parser of a request may also give up at its very beginning: each time takes as long as its limits
allow."""


class Place:
    """A path of output tokens: that of another place, and one more token."""

    __slots__ = ("before", "depth", "key", "parse", "token")

    def __init__(self, parse: "Parse", before: "Place | None" = None, token: int = -1) -> None:
        self.parse, self.before, self.token = parse, before, token
        self.key = next(parse.keys)
        self.depth: int = 0 if before is None else before.depth + 1


class Parse:
    """One request's parser and its masks."""

    def __init__(
        self,
        compile: "Callable[[bool], CompiledGrammar]",
        size: int,
        eos: Sequence[int],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """`compile`: a parser at the beginning, which is only copied; with True a new one. `size`: of the
        vocabulary. `forget`: called when the parser has given up."""
        self._compile, self._size, self._eos, self._forget = compile, size, list(eos), forget
        self.client = ""
        self.charge: Callable[[str, float], None] = lambda client, seconds: None
        """Receiver of what the client's masks took of the thread's processor, in seconds."""
        self.took = 0.0
        """Seconds of the latest mask, and of the way to its place."""
        self.keys = count()
        """Names of its places. It never refers to a place itself: no circle, so it goes when its request does."""
        self._trail: list[int] = []
        """Where the parser stands: every place from the first token on."""
        self._masks: dict[int, Tensor] = {}
        self._compiled: CompiledGrammar | None = None
        self._failed, self._renewed, self._stale = 0, -1, False
        self.failure: str | None = None
        """Why the parser gave up at some place, in its own words."""
        self._restart()

    def mask(self, place: Place) -> Tensor:
        """Which tokens may follow, bool [V] on the CPU: none once the parser has given up, nothing but the end of
        sequence after the end and after what cannot be."""
        self.work(place)
        return self._masks[place.key]

    def known(self, place: Place) -> bool:
        return place.key in self._masks

    def work(self, place: Place, seconds: float = inf) -> bool:
        """Compute the mask there, for about `seconds` of the processor; False where more are needed. A call makes
        a little progress at least."""
        if place.key in self._masks:
            return True
        while len(self._masks) >= MASKS:
            del self._masks[next(iter(self._masks))]
        began = thread_time()
        mask = self._compute(place, began + seconds)
        self.took = thread_time() - began
        self.charge(self.client, self.took)
        if mask is not None:
            self._masks[place.key] = mask
        return mask is not None

    def _compute(self, place: Place, until: float) -> Tensor | None:
        """The mask, by a new parser if this one gives up: copies share their lexer and what is left of its limits, and
        what other paths used up must not count. None where the time is up on the way, or before or behind a new
        parser: each of the three may take a fraction of a second."""
        while True:
            if self._stale:
                self._restart(fresh=True)
                if thread_time() >= until:
                    return None
            there, refused = self._go(place, until)
            if not there:
                return None
            if refused is not None:
                self._doubt(refused)
            bits = b"" if refused else self._parser.compute_bitmask()
            if not self._parser.is_error():
                return self._unpack(bits, ends=self._parser.is_accepting() if refused is None else True)
            error = self._parser.get_error()
            if self._renewed == place.key or self._failed >= PARSER_RESTARTS:
                break
            self._renewed, self._stale = place.key, True
            if thread_time() >= until:
                return None
        self.failure = brief(error)
        self._failed += 1
        self._forget()
        self._restart()
        return torch.zeros(self._size, dtype=torch.bool)

    def _restart(self, fresh: bool = False) -> None:
        if fresh or self._compiled is None:
            self._compiled = self._compile(fresh)  # held, so that the next sample finds it
            self.took = self._compiled.took
        self._stale = False
        self._parser, self._trail = self._compiled.parser.deep_copy(), []

    def _go(self, place: Place, until: float) -> tuple[bool, Place | None]:
        """Move the parser there, or to where the path leaves the grammar or goes on after its end: the first place
        refused. False where the time is up before."""
        ahead: list[Place] = []
        trail = self._trail
        while place.before is not None and not (place.depth <= len(trail) and trail[place.depth - 1] == place.key):
            ahead.append(place)
            place = place.before
        if len(trail) > place.depth:
            self._parser.rollback(len(trail) - place.depth)
            del trail[place.depth :]
        for step in reversed(ahead):
            if step.token in self._eos or not self._parser.try_consume_tokens([step.token]):
                return True, step
            trail.append(step.key)
            if thread_time() >= until:
                return False, None
        return True, None

    def _doubt(self, refused: Place) -> None:
        """The parser stands before `refused`, a token that it just did not take. It does so without a word, too, when
        it has given up: make it speak if it, or its mask there, says that the token is possible."""
        if refused.token in self._eos:
            return
        known = self._masks.get(refused.before.key) if refused.before else None
        if known is None:
            known = self._unpack(self._parser.compute_bitmask(), ends=False)
        if known[refused.token]:
            self._parser.consume_token(refused.token)

    def _unpack(self, bits: bytes, ends: bool) -> Tensor:
        mask = np.zeros(self._size, dtype=np.bool_)
        if bits:
            mask |= np.unpackbits(np.frombuffer(bits, np.uint8), count=self._size, bitorder="little").view(np.bool_)
        mask[self._eos] = ends
        return torch.from_numpy(mask)


class CompiledGrammar:
    """A grammar for one vocabulary, as long as it is referenced."""

    __slots__ = ("__weakref__", "bytes", "client", "parser", "took")

    def __init__(self, parser: "LLMatcher", size: int, client: str = "", took: float = 0.0) -> None:
        """`took`: seconds of its first mask."""
        self.parser, self.bytes, self.client, self.took = parser, size, client, took


def by_client(grammars: Mapping[tuple[str, Grammar], CompiledGrammar]) -> Counter[str]:
    """Bytes of those that each client had compiled."""
    sizes = Counter[str]()
    for compiled in list(grammars.values()):
        sizes[compiled.client] += compiled.bytes
    return sizes


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
    except OSError:
        return 0


class Grammars:
    """Compiles grammars for one vocabulary, which is read when the first is asked for. Any thread may."""

    def __init__(self, make: "Callable[[], LLTokenizer] | None", size: int) -> None:
        """`make`: the vocabulary as llguidance wants it, None without a tokenizer; `size`: number of logits."""
        self._make, self.size = make, size
        self._vocabulary: LLTokenizer | None = None
        self._lock = Lock()
        self._kept: dict[tuple[str, Grammar], CompiledGrammar] = {}
        """By tenant: no time tells what another has sent."""
        self._held: WeakValueDictionary[tuple[str, Grammar], CompiledGrammar] = WeakValueDictionary()
        """Grammars that a request uses, whether they are kept or not."""

    def compile(self, grammar: Grammar, fresh: bool = False, tenant: str = "", client: str = "") -> CompiledGrammar:
        """The grammar's parser in its first state, to be copied; `client`: for whom it is compiled. InputError if no
        text of this vocabulary fits the grammar."""
        key = tenant, grammar
        known = None if fresh else self._held.get(key)
        if known is None:
            before, least = resident(), EACH + PER_CHARACTER * len(grammar.text)
            parser, took = self._new(grammar)
            known = CompiledGrammar(parser, max(least, resident() - before), client, took)
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = self._held[key] = known
            while sum((sizes := by_client(self._kept)).values()) > IDLE_GRAMMAR_BYTES:
                largest = max(sizes, key=sizes.__getitem__)
                del self._kept[next(key for key, it in self._kept.items() if it.client == largest)]
        return known

    def full(self, client: str = "") -> bool:
        """Do requests hold as much as they may all together, or what `client` had compiled more than that leaves
        free?"""
        with self._lock:
            sizes = by_client(self._held)
        return (sizes[client] if client else 0) + sum(sizes.values()) > MAX_HELD_BYTES

    def forget(self, grammar: Grammar, tenant: str = "") -> None:
        """Drop a grammar whose parser has given up: it is not worth its memory."""
        with self._lock:
            self._kept.pop((tenant, grammar), None)
            self._held.pop((tenant, grammar), None)

    def _new(self, grammar: Grammar) -> "tuple[LLMatcher, float]":
        """A parser, and the seconds of its first mask."""
        from llguidance import LLMatcher

        parser = LLMatcher(self._spelling(), grammar.source(), log_level=0, limits=limits())
        began = thread_time()
        words = "" if parser.is_error() else any(np.frombuffer(parser.compute_bitmask(), np.uint8))
        took = thread_time() - began
        if words:
            self._probe(parser, grammar)
        dead = parser.is_stopped() and not parser.is_accepting()
        if parser.is_error() and "NoExtension" not in parser.get_error():
            raise InputError(f"The {grammar.kind} grammar is not usable: {brief(parser.get_error())}.")
        if parser.is_error() or dead or not words:
            raise InputError(f"The {grammar.kind} grammar allows no text at all; give one that something can satisfy.")
        return parser, took

    def _probe(self, parser: "LLMatcher", grammar: Grammar) -> None:
        """Walk a little way. Raises InputError for a lexer that gives up at once: what it takes until then is much."""
        walk = parser.deep_copy()
        for step in range(PROBE_TOKENS):
            tokens = np.unpackbits(np.frombuffer(walk.compute_bitmask(), np.uint8), bitorder="little").nonzero()[0]
            if len(tokens) and not walk.is_error():
                token = int(tokens[-(step % 2)])
                if walk.try_consume_tokens([token]):
                    continue
                walk.consume_token(token)  # it refused, without a word, what its own mask allows: make it speak
            why = walk.get_error() if walk.is_error() else ""
            if "lexer" in why and "NoExtension" not in why:
                raise InputError(f"The {grammar.kind} grammar is too complex: {brief(why)}.")
            return

    def _spelling(self) -> "LLTokenizer":
        if self._make is None:
            raise InputError(
                "grammar is given, but there is no tokenizer to spell its texts with: give the engine one."
            )
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._make()
            return self._vocabulary


class Structure:
    """Everything is removed that the request's grammar does not allow next."""

    def __init__(self, grammars: Grammars, turns: "MaskTurns | None" = None) -> None:
        self.grammars, self.turns = grammars, turns

    def start(self, request: Request) -> Place | None:
        grammar = request.params.grammar
        if grammar is None:
            return None
        if not request.eos:
            raise RefusalError("grammar cannot be served by a model without an end of sequence: no text could end.")
        tenant = request.extra_key
        compile = partial(self.grammars.compile, grammar, tenant=tenant, client=request.params.client)
        forget = partial(self.grammars.forget, grammar, tenant)
        parse = Parse(compile, self.grammars.size, sorted(request.eos), forget)
        if self.turns is not None:
            parse.client, parse.charge = request.params.client, self.turns.charge
        return Place(parse)

    def advance(self, state: Place, token: int) -> Place:
        return Place(state.parse, state, token)

    def apply(self, states: Sequence[Place | None], logits: Tensor) -> Tensor:
        """A draft may be drawn without a mask that takes too long: what it guesses wrong is never kept."""
        for row, state in zip(logits, states):
            if state is not None and (self.turns is None or self.turns.knows(state)):
                row.masked_fill_(~state.parse.mask(state).to(row.device), float("-inf"))
        return logits

    def rules(self, state: Place) -> None:
        return None


class Speller:
    """llguidance's own tokenizer, but for texts that a special token is written as: it spells those with ordinary
    tokens, where the other puts the special one, which no grammar allows."""

    def __init__(self, own: "LLTokenizer", tokenizer: Any) -> None:
        """`tokenizer`: a fast tokenizer of transformers."""
        ids = range(own.vocab_size)
        self.own = own
        self.tokens = [own.decode_bytes([i]) for i in ids]
        self.special_token_ids = [i for i in ids if own.is_special_token(i)]
        self.eos_token_id, self.bos_token_id = own.eos_token, None
        added = tokenizer.added_tokens_decoder.items()
        self._marks = [it.content.encode() for i, it in added if it.special or own.is_special_token(i)]

    def __call__(self, text: bytes) -> list[int]:
        spelt = self.own.greedy_tokenize if any(mark in text for mark in self._marks) else self.own.tokenize_str
        return spelt(text.decode("utf-8", "replace"))


def vocabulary(tokenizer: Any, size: int, eos: Sequence[int]) -> "LLTokenizer":
    """A fast tokenizer of transformers as llguidance wants it, for a model of `size` logits. RefusalError for others.

    Tokens beyond the tokenizer's own (a padded vocabulary) are never allowed, nor are special ones.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise RefusalError(f"grammar needs a fast tokenizer, but this one is {type(tokenizer).__name__}.")
    try:
        plain = copy(backend)
        plain.no_padding()
        plain.no_truncation()
        own = LLTokenizer(plain.to_str(), n_vocab=max(len(tokenizer), size), eos_token=list(eos))
        return LLTokenizer(TokenizerWrapper(Speller(own, tokenizer)), own.vocab_size, list(eos))
    except Exception as error:
        raise RefusalError(f"grammar cannot be served with this tokenizer: {error}.") from error
