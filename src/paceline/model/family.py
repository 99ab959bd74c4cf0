"""What a family of models says of itself: names of weights, and which fields of a config decide what."""

from dataclasses import dataclass
from typing import Any, Literal

from paceline.model.spec import Delta, RouterScore


@dataclass(frozen=True, slots=True)
class Names:
    """Where a checkpoint keeps each weight; the names below `layer` are relative to it, without `.weight`. Empty: there
    is none.

    Several names are rows of one fused matrix, in order.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    out: str = "self_attn.o_proj"
    attention_post_norm: str = ""
    ffn_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    ffn_post_norm: str = ""
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."
    """Prefix of one expert in a mixture; `expert_gate_up` and `expert_down` are relative to it and to `shared`."""
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    fused_experts: Literal["turns", "halves"] = "turns"
    """How experts that lie one behind the other in one tensor lie there: see model/stacked.py."""
    shared: str = "mlp.shared_expert."
    shared_gate: str = "mlp.shared_expert_gate"
    correction: str = ""
    """Numbers that are added to the experts' scores where they are chosen, with the name's end."""
    gate: str = ""
    """Matrix of the gates of what heads attend to, where it does not lie head by head with that of the queries."""
    sinks: str = "self_attn.sinks"
    conv: str = "conv.conv"
    """Kernel of a gated short convolution, and below it the projections before and after it."""
    conv_in: str = "conv.in_proj"
    conv_out: str = "conv.out_proj"
    mamba: str = "mamba."
    """Prefix of a Mamba-2 mixer's weights, and of a gated delta rule's."""
    delta: str = "linear_attn."
    delta_inner: tuple[str, ...] = ("in_proj_z", "in_proj_qkv", "in_proj_b", "in_proj_a")
    delta_fused: tuple[str, ...] = ("in_proj_qkvz", "in_proj_ba")
    """Input projections of a delta rule, below that prefix."""
    shared_gate_up: tuple[str, ...] = ()
    """Names of the expert that every token uses, where they are not named as in the others."""
    shared_down: str = ""
    latent: tuple[str, str, str, str, str, str, str] = (
        "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj",
    )  # fmt: skip
    """Queries, or their latent vector, its norm and what is made of it; the latent vector of keys and values, its norm
    and what is made of it."""
    curve: str = "mlp.act_fn."
    """Prefix of the numbers of an activation that was learned."""
    tokens: tuple[str, str, str] = (
        "model.embed_tokens_per_layer", "model.per_layer_model_projection", "model.per_layer_projection_norm",
    )  # fmt: skip
    """Table, projection and norm of what layers have of a token's own."""
    close: tuple[str, str, str, str] = (
        "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm", "layer_scalar",
    )  # fmt: skip
    """Gate, projection and norm behind a layer's two parts, and the factor of the stream, with its name's end."""
    beside: tuple[str, str, str, str, str] = (
        "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
        "router.scale", "router.per_expert_scale",
    )  # fmt: skip
    """Next to a dense part: norms of what experts read, of what the dense part gives and of what they give; factors of
    what the router reads, and of the experts' weights, both with their names' ends."""

    def inner(self, form: Delta) -> tuple[str, ...]:
        """Input projections of a delta rule, below `delta`."""
        if form.paired:
            return *self.delta_inner[:2], self.delta_fused[1]
        return self.delta_fused if form.fused else self.delta_inner


BACKBONE = Names(
    embedding="backbone.embeddings",
    norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    ffn_norm="norm",
    mamba="mixer.",
)
HYBRID_NAMES = Names(
    norm="model.final_layernorm",
    ffn_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
"""Names that hybrids of Mamba-2 and attention have in common; `BACKBONE`: models that grew from Mamba's own."""
MTP_PREFIX = "mtp."
"""How the names of a layer for further tokens begin."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """The config fields of a mixture of experts; what is no text decides by itself."""

    count: str = "num_experts"
    active: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    normed: bool | str = "norm_topk_prob"
    shared: str = ""
    """With the inner numbers of the expert that all tokens use; none: there is none."""
    shared_count: str = ""
    """With the number of experts that all tokens use, each as wide as the others, computed as one without a gate."""
    every: str = ""
    """Interval of mixture layers, counted from 1; the others, and those of `dense`, are dense."""
    dense: str = ""
    first: str = ""
    """The first layer that may be a mixture, and the last."""
    last: str = ""
    score: RouterScore = "softmax"
    jitter: str = ""
    """Config field with the noise of training, by which a `sparse` router tells who is near the best."""
    bias: bool = False
    """The router has one."""
    corrected: bool | str = False
    groups: tuple[str, str] | None = None
    """How many groups there are, and how many are active."""
    scale: str = ""
    floor: float = 0.0
    shared_gated: bool = True
    """The expert of `shared` has a gate."""
    optional: str = ""
    """Config field with the inner numbers of a dense part that stands for the mixture where `count` is 0."""
    kinds: str = ""
    """Config field with a list that says `sparse` of the layers that are mixtures."""
    methods: dict[str, bool] | None = None
    """Values of `topk_method`, and whether experts are then chosen by groups."""
    group_best: int = 2
    least: str = ""
    """Config field below which the sum of the weights does not fall; served are values that cannot matter."""
    scored: str = ""
    """Config field that says `softmax` (of the chosen experts alone) or `sigmoid`, in place of `score`."""
    joined: str = ""
    """Config field that says whether what all tokens use and the others are added (`sum`) or halved first
    (`average`)."""
    dense_width: str = "intermediate_size"
    """Config field with the inner numbers of the layers that are no mixtures; without a value: `intermediate_size`."""
    listed: str = ""
    """Config field with the list of the layers that are mixtures."""
    weighs_inputs: bool = False
    enabled: str = ""
    """Config field that says whether there are mixtures, which then stand next to the dense parts."""


@dataclass(frozen=True, slots=True)
class MambaFields:
    """The config fields of Mamba-2 mixers."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    length: str = "mamba_d_conv"
    conv_bias: str = "mamba_conv_bias"
    in_bias: str = "mamba_proj_bias"
    out_bias: str = "mamba_proj_bias"
    activation: str = "hidden_act"
    least: str = ""
    """The shortest time step, where it is not in `time_step_limit`."""
    norm: str = ""
    """Whether there is a norm, and `norm_first`: whether it comes before the gate; none: the gate comes first."""
    norm_first: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """How a family departs from llama. A string names the config field that decides, anything else decides."""

    architecture: str
    names: Names = Names()
    activation: str = "hidden_act"
    """The config field, or the activation itself where there is none."""
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | str = False
    norm_offset: float = 0.0
    embedding_scaled: bool | str = False
    """Embeddings are multiplied by sqrt(hidden)."""
    attention_scale: str = ""
    """Config field s of the score scale 1/sqrt(s); none: head_dim."""
    attention_softcap: str = ""
    logit_softcap: str = ""
    window: str = ""
    """Config field with the sliding window."""
    layer_types: bool = False
    """Whether `config.layer_types` says which layers slide; else all layers have the window."""
    interleaved: bool | str = False
    """Pairs of a head that are rotated together lie side by side, not half a head apart."""
    unrotated: str = ""
    """Layers without a rotation: those with a 0 in this list of the config, or `full_attention`: those that do not
    slide, where the config has a window; `no window`: those that do not slide."""
    rotated_dense: str = ""
    """Config field that is 1 where dense layers are rotated, whether they slide or not."""
    chunked: str = ""
    """Config field with the tokens of a chunk, within which layers of the type `chunked_attention` attend, and
    `floor_scale`, from which on queries grow (Llama 4): texts up to there, for which both change nothing, are
    served."""
    by_theta: str = ""
    """Config field: a list of the rotation's base for each layer."""
    ungated: bool = False
    """The feed-forward is one matrix, activated, and another."""
    norm_eps: str = "rms_norm_eps"
    layer_norm: bool = False
    norm_bias: bool = False
    whole_norm: bool = False
    norm_unweighted: bool = False
    """q and k are normed without weights, and only in layers that rotate them."""
    norm_turned: bool = False
    """q and k are normed behind their rotation."""
    head_bias: bool | str = False
    parallel: bool | str = False
    embedding_scale: str = ""
    """Config fields of factors: of the embeddings; of what a layer adds; of the scores; of the logits, which `divided`
    divides by it."""
    residual_scale: str = ""
    score_scale: str = ""
    logit_scale: str = ""
    divided: bool = False
    refused: tuple[str, ...] = ()
    """Config fields that must not be set: variants that are not served."""
    only: dict[str, Any] | None = None
    """Config fields that the authors' own code reads and transformers does not, and the value that is computed."""
    even: tuple[str, ...] = ()
    """Config fields that may be a list of one number for each layer, which must be the same."""
    by_alpha: bool = False
    """A rotation whose scaling is `dynamic` and has an `alpha` is scaled by that once for all (Hunyuan)."""
    by_scale: bool = False
    """`longrope` has factors of cos and sin of its own for short and for long texts (Phi-3.5-MoE)."""
    experts: Mixed | None = None
    conv: tuple[str, str] | None = None
    """Config fields with the length of the convolutions in place of attention where `config.layer_types` says `conv`,
    and whether they have biases."""
    mamba: MambaFields | None = None
    """Mixers of layers whose type is `linear_attention`, or `hybrid`: with attention next to it."""
    feedless: bool = False
    """Layers have no feed-forward part."""
    apart: bool = False
    """Feed-forward parts are layers of their own, of the types `mlp` and `moe`."""
    delta: Literal["", "apart", "fused"] = ""
    """Layers whose type is `linear_attention` follow the gated delta rule; their input projections are four matrices,
    or two, in which they lie head by head."""
    mtp: bool = False
    """A checkpoint may hold a layer for further tokens, in tensors `mtp.*`, which draft/mtp.py serves."""
    gated_attention: bool | str = False
    head_gates: bool = False
    """A head has one gate, not one for each of its numbers."""
    multiplied: bool = False
    """Projections have the factors of Falcon-H1."""
    turned: str | None = None
    """Config field that says `rope` where queries and keys are rotated; empty: they never are."""
    sinks: bool = False
    beyond: str = ""
    """Config field: how many layers behind the last predict further tokens. They are no part of a pass."""
    stretched: bool = False
    """Queries grow with their position beyond the length of the first training (Llama 4's rule): texts up to it, for
    which that changes nothing, are served."""
    latent: bool = False
    """Keys and values are made of a latent vector."""
    varied: bool = False
    """Layers have heads of their own sizes, or another layer's keys and values, and more of the token (Gemma 4)."""
    rounded: bool = False
    """The inner numbers of the feed-forward part are made from `intermediate_size` by LFM2's rule."""
