"""The C structures of decoder.cpp, field by field in its order; it says what they mean."""

import ctypes
from array import array
from collections.abc import Collection, Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_double, c_float, c_int64, c_void_p
from typing import Any, Protocol


def integers(*names: str) -> list[tuple[str, type]]:
    return [(name, c_int64) for name in names]


def pointers(*names: str) -> list[tuple[str, type]]:
    return [(name, c_void_p) for name in names]


def doubles(*names: str) -> list[tuple[str, type]]:
    return [(name, c_double) for name in names]


class CLinear(Structure):
    _fields_ = [
        *pointers("weight", "scale", "sums", "bias"),
        *integers("inputs", "outputs", "form", "bits", "table", "spread", "power"),
    ]


class CNorm(Structure):
    _fields_ = pointers("weight", "bias")


class CExperts(Structure):
    _fields_ = [
        *pointers("router", "router_bias", "correction"),
        *((name, POINTER(CLinear)) for name in ("gate_up", "down")),
        *((name, CLinear) for name in ("shared_gate_up", "shared_down")),
        *pointers("shared_gate"),
        *integers("count", "active", "width", "shared", "sigmoid", "normed"),
        *integers("groups", "active_groups", "group_best"),
        *doubles("scale", "floor"),
        *pointers("loads"),
    ]


class CRecurrence(Structure):
    _fields_ = [
        *integers("kind", "length", "channels", "record", "width"),
        *integers("heads", "head_dim", "groups", "key_dim", "tiled"),
        *integers("norm_groups", "norm_rows", "gate_first"),
        *doubles("low", "high"),
        *pointers("kernel", "conv_bias", "rate", "offset", "through", "norm"),
        *pointers("tails", "matrices", "records"),
    ]


class CLayer(Structure):
    _fields_ = [
        *((name, CLinear) for name in ("qkv", "value", "out", "gate_up", "down")),
        *((name, CNorm) for name in ("attention_norm", "ffn_norm", "attention_post", "ffn_post")),
        *pointers("head_norm", "turn"),
        *integers("rotated", "window"),
        *pointers("sinks"),
        ("experts", POINTER(CExperts)),
        ("recurrence", POINTER(CRecurrence)),
        *integers("kept"),
    ]


class CDelta(Structure):
    _fields_ = [*pointers("down", "up", "tile"), *integers("rank", "inputs")]


class CModel(Structure):
    _fields_ = [
        *integers("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "int8"),
        *integers("block_size", "threads", "unit", "activation", "gated", "centred", "joint", "parallel"),
        *doubles("eps", "attention_scale", "attention_cap", "logit_cap", "embedding_scale"),
        *doubles("residual_scale", "logit_scale"),
        *pointers("embedding"),
        ("norm", CNorm),
        *((name, CLinear) for name in ("head", "lookup", "narrow")),
        *pointers("word"),
        *integers("words", "drafts"),
        ("layer", POINTER(CLayer)),
        *pointers("keys", "values", "key_scales", "value_scales"),
        *integers("bytes", "rank"),
        *pointers("adapters"),
        *doubles("slope", "limit"),
        *integers("active", "routed", "shared", "kept", "gates"),
        *integers("projected", "channels", "scanned", "coefficients"),
    ]


class CScan(Structure):
    _fields_ = [
        *integers("texts", "rows", "keeps"),
        *pointers("text", "replayed", "parent", "anchor", "place", "keep", "record"),
    ]


class CPass(Structure):
    _fields_ = [
        *integers("rows", "segments", "wanted", "width", "first", "last", "embed", "head"),
        *pointers("token", "position", "slot", "word", "want", "table", "segment"),
        *pointers("hidden", "inputs", "post_norm", "logits", "seconds", "parts", "hides"),
        *integers("narrow"),
        ("scan", POINTER(CScan)),
    ]


MOST_NODES = 64
"""Maximum number of nodes in one draft (proposer.h)."""


class CRules(Structure):
    _fields_ = [
        *integers("allowed"),
        *pointers("allow"),
        *integers("words"),
        *pointers("size", "word"),
        *integers("tailed"),
        ("tail", POINTER(c_int64)),
        *integers("left", "ends"),
        ("end", POINTER(c_int64)),
        *integers("biased"),
        *pointers("bias_of", "bias"),
        *doubles("repetition", "presence", "frequency"),
        *integers("known"),
        *pointers("prompt"),
        *integers("fresh"),
        ("fresh_token", POINTER(c_int64)),
        *integers("counted"),
        *((name, POINTER(c_int64)) for name in ("token", "times")),
    ]


class CWarp(Structure):
    _fields_ = [
        *doubles("temperature", "min_p", "top_p"),
        *integers("top_k"),
        ("rules", POINTER(CRules)),
    ]


class WarpLike(Protocol):
    """`core.warp.Warp`, which this room does not import."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def rules(self) -> Any: ...


def ruled(rules: Any) -> CRules:
    """Structure that says the same as `core.warp.LogitRules`, whose tensors must outlive it. Rules keep theirs: all
    rows and all calls that have the same rules share it."""
    if not rules.made:
        rules.made.append(rules_in(rules))
    made: CRules = rules.made[0]
    return made


def rules_in(rules: Any) -> CRules:
    (sizes, words), (ids, numbers) = rules.words or (None, None), rules.bias or (None, None)
    allowed, prompt = rules.allowed, rules.prompt
    return CRules(
        -1 if allowed is None else len(allowed), None if allowed is None else allowed.data_ptr(),
        0 if sizes is None else len(sizes), None if sizes is None else sizes.data_ptr(),
        None if words is None else words.data_ptr(),
        len(rules.tail), integers_in(rules.tail), rules.left, len(rules.ends), integers_in(rules.ends),
        0 if ids is None else len(ids), None if ids is None else ids.data_ptr(),
        None if numbers is None else numbers.data_ptr(),
        rules.repetition, rules.presence, rules.frequency,
        0 if prompt is None else len(prompt), None if prompt is None else prompt.data_ptr(),
        len(rules.fresh), integers_in(rules.fresh),
        len(rules.counts), integers_in(rules.counts), integers_in(rules.counts.values()),
    )  # fmt: skip


def warped(warp: WarpLike) -> CWarp:
    """Structure that says the same; the tensors of its rules must outlive it."""
    rules = None if warp.rules is None else ctypes.pointer(ruled(warp.rules))
    return CWarp(warp.temperature, warp.min_p, warp.top_p, min(warp.top_k, (1 << 31) - 1), rules)


def warps_in(warps: Sequence[WarpLike]) -> "ctypes.Array[CWarp]":
    made = {id(warp): warped(warp) for warp in warps}
    return (CWarp * len(warps))(*(made[id(warp)] for warp in warps))


class CTurn(Structure):
    _fields_ = [
        *integers("place", "said", "room", "most", "base", "root"),
        ("warp", CWarp),
        *((name, POINTER(c_int64)) for name in ("tokens", "keys", "table")),
        ("hidden", POINTER(c_float)),
        *integers("taps"),
    ]


class CDraft(Structure):
    _fields_ = [
        *integers("count"),
        *((name, c_int64 * MOST_NODES) for name in ("token", "parent", "depth", "word")),
    ]


class CKept(Structure):
    _fields_ = [*integers("count"), ("node", c_int64 * MOST_NODES)]


PROPOSE = CFUNCTYPE(None, c_void_p, c_int64, POINTER(CTurn), POINTER(CDraft))
KEPT_CALLBACK = CFUNCTYPE(None, c_void_p, c_int64, POINTER(CTurn), POINTER(CDraft), POINTER(CKept))


class CProposer(Structure):
    _fields_ = [*pointers("state", "propose", "kept", "done")]


class CRun(Structure):
    _fields_ = [
        *integers("passes", "room", "ends"),
        *pointers("most", "warp", "keys", "end"),
        *integers("drafts"),
        *pointers("whose"),
        ("proposer", POINTER(CProposer)),
        *integers("taps"),
        *pointers("tap", "hidden", "tokens", "length", "rounds", "offered", "kept"),
        *doubles("seconds"),
    ]


class CLookups(Structure):
    _fields_ = [
        *integers("texts", "longest"),
        *pointers("history", "size", "rate", "nodes", "least"),
        *doubles("stamina", "memory"),
        *pointers("made"),
    ]


class CChains(Structure):
    _fields_ = [
        ("model", POINTER(CModel)),
        ("behind", POINTER(CPass)),
        *pointers("nodes", "least", "reach"),
        *doubles("share", "sharp"),
    ]


class CTrees(Structure):
    _fields_ = [
        ("model", POINTER(CModel)),
        ("behind", POINTER(CPass)),
        *pointers("nodes", "least", "gain", "reach", "computed"),
        *integers("children", "passes"),
        *doubles("sharp"),
    ]


class CFeatureLayer(Structure):
    _fields_ = [
        *((name, POINTER(CModel)) for name in ("model", "target", "fuse")),
        *integers("fused", "normed"),
        *((name, CNorm) for name in ("embedding_norm", "feature_norm")),
        *pointers("features", "word"),
    ]


class CFeatureTrees(Structure):
    _fields_ = [
        ("layer", POINTER(CFeatureLayer)),
        ("behind", POINTER(CPass)),
        *pointers("tap"),
        *integers("taps"),
        *pointers("nodes", "least", "gain", "reach", "stored"),
        *integers("children", "passes"),
        *doubles("sharp"),
    ]


class CStage(Structure):
    _fields_ = [*pointers("straight", "bent"), *integers("blocks"), *pointers("block", "output")]


class CHeads(Structure):
    _fields_ = [
        ("target", POINTER(CModel)),
        *pointers("tap"),
        *integers("width", "depth", "sees"),
        *pointers("stage"),
        *integers("words"),
        *pointers("word", "first", "nodes", "deepest", "parent", "rank", "tries", "hits", "ranks"),
        ("text", POINTER(CModel)),
        *integers("blocks"),
        *pointers("table", "shift", "entered"),
    ]


class CMerged(Structure):
    _fields_ = [
        *integers("parts"),
        *pointers("part", "joined", "models", "nodes", "row", "round"),
        *pointers("records", "missed", "beaten", "told", "tellings"),
        *integers("texts", "most_told", "always", "retry", "broken", "tell"),
        *doubles("memory"),
        *pointers("made"),
    ]


def integers_in(values: Collection[int]) -> "ctypes.Array[c_int64]":
    """An array as the library reads it, without torch, whose code a pass has driven from the caches."""
    return (c_int64 * len(values)).from_buffer(array("q", values))


def reals_in(values: Sequence[float]) -> "ctypes.Array[c_double]":
    return (c_double * len(values))(*values)


def keys_in(values: Sequence[int]) -> "ctypes.Array[ctypes.c_uint64]":
    return (ctypes.c_uint64 * len(values))(*values)


def addresses(*arrays: "ctypes.Array[Any]") -> list[int]:
    return [ctypes.addressof(it) for it in arrays]


NATIVE_PARTS = ("embedding", "norms", "linear layers", "rope", "attention", "head")
"""What `seconds` counts, in order."""


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its doors, so that pointers survive."""
    library.paceline_forward.argtypes = [POINTER(CModel), POINTER(CPass)]
    library.paceline_forward.restype = None
    library.paceline_replay.argtypes = [POINTER(CModel), POINTER(CScan)]
    library.paceline_replay.restype = None
    library.paceline_move.argtypes = [POINTER(CModel), c_int64, c_void_p, c_void_p]
    library.paceline_move.restype = None
    library.paceline_linear.argtypes = [POINTER(CModel), c_void_p, c_int64, c_void_p]
    library.paceline_linear.restype = None
    library.paceline_ticks.argtypes = [POINTER(CModel), c_int64, c_int64]
    library.paceline_ticks.restype = c_double
    library.paceline_winners.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p]
    library.paceline_winners.restype = None
    library.paceline_race.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p]
    library.paceline_race.restype = None
    library.paceline_law.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p]
    library.paceline_law.restype = None
    library.paceline_edit.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64]
    library.paceline_edit.restype = None
    library.paceline_draft.argtypes = [POINTER(CModel), POINTER(CPass), c_int64, c_void_p, c_void_p, c_void_p]
    library.paceline_draft.argtypes += [c_void_p, c_double, c_double, c_void_p, c_void_p]
    library.paceline_draft.restype = None
    library.paceline_run.argtypes = [POINTER(CModel), POINTER(CPass), POINTER(CRun)]
    library.paceline_run.restype = None
    library.paceline_features.argtypes = [POINTER(CFeatureLayer), POINTER(CPass), c_void_p]
    library.paceline_features.restype = None
    return library
