"""Every option of an engine, once: the signature of `LLM`, flags, PACELINE_* names, TOML keys and docs/python.md
come from it. Nothing here imports torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from paceline.core.help import Help
from paceline.core.user import UserFn

PANEL_NAME = "Model and engine"
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["int8", "int4", "none"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]


def _any(text: str, flag: str | None = None) -> Help:
    return Help(text, PANEL_NAME, flag)


def _serving(text: str) -> Help:
    """An option whose flag only `paceline serve` has: elsewhere its default is right."""
    return Help(text, PANEL_NAME, commands=False)


KeepLearned = Annotated[
    bool,
    _any("Keep what the planner learns about drafters on disk, under $PACELINE_CACHE, for the next start. On by "
         "default in the commands, off in Python."),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How an engine forms its steps and keeps texts: options that its planner, scheduler and cache read themselves."""

    verifier: Annotated[
        str,
        _any("Verifier that judges drafts by default: exact keeps the text of a seed; chain, rrs and kseq keep the "
             "distribution."),
    ] = "exact"  # fmt: skip
    block_size: Annotated[
        int,
        _serving(
            "Tokens in a block of the K/V cache; more where a model keeps a large state with each (see state_memory)."
        ),
    ] = 16
    max_requests: Annotated[int, _serving("Maximum number of samples that are decoded at once; the others wait.")] = 64
    row_budget: Annotated[
        int,
        _serving("Maximum rows (tokens of prompts and drafts) in one pass; the step times decide how many a step has."),
    ] = 2048
    prefix_cache: Annotated[
        bool, _serving("Share the K/V of texts that begin alike, and keep it for later requests.")
    ] = True
    eviction: Annotated[
        str,
        _serving("Which cached prefix to forget when room is needed: 'told' (what clients say comes back stays while "
                 "that pays), lru, det, mark0, mark_predict or shadow."),
    ] = "told"  # fmt: skip
    kv_disk: Annotated[
        str | None,
        _serving("Keep the K/V of idle texts in a directory of your own, DIR:SIZE such as /var/kv:20G, and find it "
                 "again after a restart; several engines may share it."),
    ] = None  # fmt: skip
    overlap: Annotated[
        str,
        _any("How drafters may work while the target verifies: none, shared (all cores for both), T+D (threads of "
             "target and draft, as 3+1) or stream (on a GPU)."),
    ] = "none"  # fmt: skip
    length: Annotated[
        str,
        _serving(
            "Policy that decides which drafter drafts how many tokens: goodput; fixed, for comparison; or specdec, "
            "by the draft model's acceptance head."
        ),
    ] = "goodput"
    schedule: Annotated[
        str,
        _serving("How prompts and decodes share the steps: chunked, layered (prompts advance by groups of layers, for "
                 "mixtures of experts), or for comparison prefill_first or decode_first."),
    ] = "chunked"  # fmt: skip
    order: Annotated[
        str,
        _serving("Order in which requests are served: fcfs, priority, deadline, or fair between API keys, else users."),
    ] = "fcfs"
    tbt_target_ms: Annotated[
        float | None,
        _serving("Maximum time between two steps of a decoding request while prompts are read, for chunked; 0: only "
                 "row_budget limits a step. Default: the larger of 100 ms and four plain steps."),
    ] = None  # fmt: skip
    group_size: Annotated[
        int | None,
        _serving("Maximum number of requests that decode in a step, alike in rows and lengths where possible (EXSPEC). "
                 "Default: all."),
    ] = None  # fmt: skip
    layer_groups: Annotated[
        int | None,
        _serving("Number of groups of layers, for schedule layered: a prompt advances by one group a step. Default: "
                 "as many as keep tbt_target_ms."),
    ] = None  # fmt: skip
    check: Annotated[bool, _serving("Verify the cache's book-keeping after every step (slow).")] = False


@dataclass(frozen=True, slots=True)
class Options(StepOptions):
    """Everything that shapes an engine; the same words on the command line."""

    model: Annotated[
        str | Path | None,
        _any("Directory in Hugging Face layout, GGUF file, hub id (owner/name, owner/name:FILE.gguf), or a name that "
             "paceline list shows. Default: the bundled demo pair."),
    ] = None  # fmt: skip
    draft: Annotated[
        str | Path | None,
        _any("A small model of the same vocabulary that drafts, or the directory of a head that was trained for the "
             "model."),
    ] = None  # fmt: skip
    drafter: Annotated[
        str | UserFn | None,
        _any("Drafter: none, ngram, model, ...; in Python also a function, the `user` drafter. Default: auto, which "
             "chooses for each request and step."),
    ] = None  # fmt: skip
    drafter_settings: Annotated[
        tuple[str, ...],
        _any("A setting of a drafter, such as swift.ratio=0.3; may be repeated. docs/matrix.md lists them. It changes "
             "only the speed.", "--drafter-set"),
    ] = ()  # fmt: skip
    nodes: Annotated[
        int | None,
        _any(
            "Maximum number of drafted tokens a step of a request. Default: the drafter's own number, less when many "
            "requests run."
        ),
    ] = None
    dtype: Annotated[Dtype, _any("Data type of weights and K/V cache.")] = "bfloat16"
    quantize: Annotated[
        Quantize | None,
        _any("int8: the linear layers of model and draft in int8 (W8A8); int4: in 4 bits by groups of 32, head and "
             "embedding in 6, activations in 8. The text is then the quantised model's own. Default: a checkpoint that "
             "is quantised already keeps its own bits; none widens them to dtype."),
    ] = None  # fmt: skip
    draft_quantize: Annotated[
        Quantize | None,
        _any("Quantization of the draft alone, with the values of quantize; it changes only the speed, never the "
             "output. Default: as quantize."),
    ] = None  # fmt: skip
    draft_vocab: Annotated[
        str | None,
        _any("Draft from the commonest tokens alone, which reads less of the head: 32k takes the tokenizer's first "
             "32,768, 32k:FILE those that are commonest in a text, learn (or learn:8k) those of the served text. It "
             "changes only the speed. Default: all tokens."),
    ] = None  # fmt: skip
    kv_dtype: Annotated[
        KvDtype | None,
        _any("int8: keys and values in 8 bits, which leaves room for 1.88 times the tokens. Default: as dtype."),
    ] = None
    device: Annotated[str, _any("Device of the model: cpu, cuda, cuda:1, ...")] = "cpu"
    threads: Annotated[
        int | None, _any("CPU threads of the whole process. Default: one for each core that torch finds.")
    ] = None
    max_model_len: Annotated[
        int | None, _any("Longest prompt plus output, in tokens. Default: what the model was trained for.")
    ] = None
    chat_template: Annotated[
        Path | str | None, _any("A file with a Jinja template for conversations. Default: the checkpoint's own.")
    ] = None
    lora: Annotated[
        tuple[str, ...],
        _any("An adapter (LoRA) of the model, NAME=DIR, in PEFT's layout or a GGUF file; requests name it as their "
             "model. NAME=DIR,draft=DIR2: with a draft of its own, an adapter of the draft model or a head. In Python "
             "also {name: directory}.", "--lora"),
    ] = ()  # fmt: skip
    zoo: Annotated[
        tuple[str, ...],
        _any("A fine-tune of the model, NAME=DIR, that shares with it what is equal; requests name it as their model, "
             "or a chain of layers such as a[0:12]+b[12:24]. In Python also {name: directory}.", "--zoo"),
    ] = ()  # fmt: skip
    substitute: Annotated[
        tuple[str, ...],
        _any("Let the model's layers take the place of a fine-tune's where this report of paceline zoo compare found "
             "them equivalent: the fine-tune's text changes within the report's bound.", "--substitute"),
    ] = ()  # fmt: skip
    max_loras: Annotated[
        int, _serving("Maximum number of adapters in memory; idle ones are dropped, and read again when needed.")
    ] = 16
    lora_memory: Annotated[
        str | int | None, _serving("Bytes for all adapters in memory, such as 512M. Default: no limit but max_loras.")
    ] = None
    tensor_parallel: Annotated[
        int,
        _any("Processes, or GPUs, over which each matrix is split by its outputs; 1: no split."),
    ] = 1  # fmt: skip
    expert_parallel: Annotated[
        int,
        _any("Processes over which the experts of a mixture are split, each with memory of its own (in dtype, without "
             "quantization); 1: no split."),
    ] = 1  # fmt: skip
    expert_table: Annotated[
        Path | str | None,
        _any("A table of paceline experts: which process holds each expert, and where tokens go. Default: in turn."),
    ] = None  # fmt: skip
    layer_processes: Annotated[
        int,
        _any("Processes over which the layers of the model and of its zoo are placed (Ray); 1: no split."),
    ] = 1  # fmt: skip
    layer_rule: Annotated[
        str,
        _any("How layers are placed: greedy, near the layers that texts pass before and after them; or best_fit, by "
             "memory alone."),
    ] = "greedy"  # fmt: skip
    layer_counts: Annotated[
        Path | str | None,
        _any("File that counts the rows of each chain of layers: read at the start to place layers by, updated at the "
             "end. Default: all models of the zoo count alike."),
    ] = None  # fmt: skip
    memory: Annotated[
        str | int | None,
        _any("Bytes for everything above the bare process: weights, K/V cache, draft, logits and scratch, such as 2G "
             "or 512M. Where it is short, rows, requests and drafts shrink and a draft model may be left out, as is "
             "predicted to be fastest. Default: what weights and scratch take, and a K/V cache of up to a quarter of "
             "the free memory, no more than max_requests full contexts can use."),
    ] = None  # fmt: skip
    state_memory: Annotated[
        str | int | None,
        _any("Bytes for the states of recurrent layers that other texts may continue from, such as 512M; those of "
             "running texts come in addition. The least shared and longest unused go first. Default: a state for each "
             "block, and larger blocks where states are large."),
    ] = None  # fmt: skip
    blocks: Annotated[int | None, _any("Blocks of the K/V cache. Default: as many as memory leaves room for.")] = None
    weights_cache: Annotated[
        bool,
        _any("Keep packed weights of large models on disk, under $PACELINE_CACHE, for the next start."),
    ] = True
    late_weights: Annotated[
        bool,
        _serving("Start before packed weights have been read from disk: the first token comes sooner, the first passes "
                 "are slower."),
    ] = False  # fmt: skip
    keep_learned: KeepLearned = False
    online: Annotated[
        float,
        _any("Share of a core with which a draft model of another vocabulary (drafter crossvocab) learns from the "
             "verified text in the background; 0: it does not learn."),
    ] = 0.0  # fmt: skip
    revision: Annotated[str | None, _any("Branch, tag or commit of the model on the hub.")] = None
    token: Annotated[str | None, _any("Access token of the hub. Default: the saved login.")] = None


class EngineOptions(TypedDict, total=False):
    """Fields of `Options` other than model, draft and drafter, for type checkers; `Options` says what each is."""

    verifier: str
    drafter_settings: tuple[str, ...]
    nodes: int | None
    dtype: Dtype
    quantize: Quantize | None
    draft_quantize: Quantize | None
    draft_vocab: str | None
    kv_dtype: KvDtype | None
    device: str
    threads: int | None
    max_model_len: int | None
    chat_template: Path | str | None
    lora: "Sequence[str] | Mapping[str, str | Path]"
    zoo: "Sequence[str] | Mapping[str, str | Path]"
    substitute: "Sequence[str | Path]"
    max_loras: int
    lora_memory: str | int | None
    tensor_parallel: int
    expert_parallel: int
    expert_table: Path | str | None
    layer_processes: int
    layer_rule: str
    layer_counts: Path | str | None
    memory: str | int | None
    state_memory: str | int | None
    blocks: int | None
    block_size: int
    max_requests: int
    row_budget: int
    prefix_cache: bool
    weights_cache: bool
    late_weights: bool
    keep_learned: bool
    eviction: str
    kv_disk: str | None
    overlap: str
    online: float
    length: str
    schedule: str
    order: str
    tbt_target_ms: float | None
    group_size: int | None
    layer_groups: int | None
    revision: str | None
    token: str | None
    check: bool


def shown() -> Signature:
    """The signature of `LLM`, as `help` and TAB show it: every option with its default."""
    parameters = signature(Options).parameters.values()
    return Signature([p.replace(kind=Parameter.KEYWORD_ONLY) if p.name in EngineOptions.__annotations__ else p
                      for p in parameters])  # fmt: skip
