"""Names of tensors as checkpoints have them, and as one of text alone has them in transformers."""

import re
from collections.abc import Mapping
from typing import Any

from paceline.model.families import FAMILIES

LAYER_NUMBER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.")
STACKED = re.compile(r"(.+)#(\d+)(\.\w+)")
TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("model.text_model.", "model."),
    ("text_model.", "model."),
)
"""How the text's tensors begin in checkpoints that read pictures, too, and in those that do not."""
PICTURES = re.compile(
    r"(model\.)?(vision_tower|multi_modal_projector|visual|vision_model|embed_vision|audio_tower|embed_audio|connector"
    r"|mm_projector|vision_embedder|image_newline$)(\.|$)"
)
AUTHORS_NAMES = {
    "exaone": (
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.ln_f.", "model.norm."),
        (".attn.attention.out_proj.", ".self_attn.o_proj."),
        (".attn.attention.", ".self_attn."),
        (".ln_1.", ".input_layernorm."),
        (".ln_2.", ".post_attention_layernorm."),
        (".mlp.c_fc_0.", ".mlp.gate_proj."),
        (".mlp.c_fc_1.", ".mlp.up_proj."),
        (".mlp.c_proj.", ".mlp.down_proj."),
    )
}
"""Parts of tensors' names, by model type, in checkpoints as their authors publish them, and of the same ones
elsewhere."""


def of_stack(name: str) -> tuple[str, int | None]:
    """The tensor that holds `A#N.weight`, which is number N of those that lie in A.weight, and N; else the name."""
    found = STACKED.fullmatch(name)
    return (name, None) if found is None else (found[1] + found[3], int(found[2]))


def of_text(name: str) -> str | None:
    """A tensor's name in a checkpoint of text alone; None: it belongs to pictures."""
    if PICTURES.match(name):
        return None
    return next((ours + name.removeprefix(theirs) for theirs, ours in TEXT_PREFIXES if name.startswith(theirs)), name)


def renamed(name: str, kind: str) -> str:
    """A tensor's name as transformers has it."""
    for theirs, ours in AUTHORS_NAMES.get(kind, ()):
        name = name.replace(theirs, ours)
    return name


def of_authors(module: str, kind: str) -> str:
    """A module's name as the model's authors have it."""
    name = f"{module}."
    for theirs, ours in AUTHORS_NAMES.get(kind, ()):
        name = name.replace(ours, theirs)
    return name[:-1]


def number_of_layer(name: str) -> int | None:
    """Number of the layer that a tensor belongs to, by its name; None: to no layer."""
    found = LAYER_NUMBER.match(name)
    return None if found is None else int(found[1])


def of_further(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor belongs to the layers behind the last, which predict further tokens: they are no part of a
    pass."""
    family, layers = FAMILIES.get(str(config.get("model_type"))), config.get("num_hidden_layers")
    if family is None or not family.beyond or not isinstance(layers, int):
        return False
    more = config.get(family.beyond)
    found = re.match(family.names.layer.replace(".", r"\.").format(r"(\d+)"), name)
    return found is not None and layers <= int(found[1]) < layers + (more if isinstance(more, int) else 1)
