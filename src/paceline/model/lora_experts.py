"""Adapters of experts that transformers holds in one parameter, as PEFT writes them (`target_parameters`).

    <experts>.lora_A.weight [experts x rank, in]        expert by expert
    <experts>.lora_B.weight [out, rank x experts]       the experts of each rank side by side

<experts> is the module that holds `gate_up_proj` (or `up_proj` alone) and `down_proj`; where both have factors, those
of the first are of <experts>.base_layer. Which parameter it is, the shapes say.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.model.families import FAMILIES
from paceline.model.lora_config import MAX_MODULE_NAME_CHARS, layer_of, parameter_of, tails
from paceline.model.lora_places import LoraPlace, lora_places
from paceline.model.spec import Experts, ModelSpec

STACKED_EXPERTS = re.compile(r"((?:.+\.)?layers\.)\d+(\.(?:.+\.)?experts)(?:\.base_layer)*")
"""Module of all experts of a layer, as it is wrapped."""
ROUTER_ENDS = (".gate", ".router")
"""What transformers calls routers, whatever checkpoints do."""
EXPERTS_ENDS = ("gate_up_proj", "up_proj", "down_proj")
"""What it calls the parameters of experts."""
GATES_IN_TURN = ("gpt_oss",)
"""Families whose gates and ups are in turn in this parameter; in others gates are before ups."""
Pairs = dict[str, dict[str, Tensor]]
"""{module: {"A": factor, "B": factor}}"""


def unstacked(pairs: Pairs, spec: ModelSpec) -> tuple[Pairs, dict[str, str]]:
    """Factors of single experts in place of those of all; and {module: name of its parameter} for each expert of the
    model, where there are such factors. CheckpointError for factors that are not of a model's experts."""
    out, names, found = dict[str, dict[str, Tensor]](), dict[str, str](), dict[int, list[LoraPlace]]()
    for module, pair in pairs.items():
        match, layer = STACKED_EXPERTS.fullmatch(module[:MAX_MODULE_NAME_CHARS]), layer_of(module)
        if match is None or not 0 <= layer < len(spec.layers) or not isinstance(spec.layers[layer].feed, Experts):
            router = router_of(module, spec)
            names |= {router: module} if router != module else {}
            out[router] = pair
            continue
        if not found:
            found = expert_places(spec)
            names |= {
                name: parameter(f"{match[1]}{number}{match[2]}", place)
                for number, places in found.items()
                for place in places
                for name in place.modules
            }
        for place, down, up in each_expert(module, pair, found.get(layer, [])):
            for name, rows in zip(place.modules, parts_of(spec, place, up)):
                if name in out:
                    raise CheckpointError(f"An adapter has factors of {name} twice; save one adapter alone.")
                out[name] = {"A": down, "B": rows}
    return out, names


def router_of(module: str, spec: ModelSpec) -> str:
    """A router's name in checkpoints, for the one that transformers has; any other name as it is."""
    layer = layer_of(module)
    if not module.endswith(ROUTER_ENDS) or not 0 <= layer < len(spec.layers):
        return module
    if not isinstance(spec.layers[layer].feed, Experts):
        return module
    names = FAMILIES[spec.family].names
    return names.layer.format(layer) + names.router


def expert_places(spec: ModelSpec) -> dict[int, list[LoraPlace]]:
    """Matrices of experts by layer: all first ones, and then all second ones."""
    found = dict[int, list[LoraPlace]]()
    for end in (".gate_up", ".down"):
        for place in lora_places(spec, False, False):
            if place.matrix.startswith("ffn.experts.") and place.matrix.endswith(end):
                found.setdefault(place.layer, []).append(place)
    return found


def parameter(module: str, place: LoraPlace) -> str:
    """The parameter that holds this matrix of all experts of a module."""
    first = "gate_up_proj" if sum(place.outs) > place.outs[0] or "#" in place.modules[0] else "up_proj"
    return f"{module}.{'down_proj' if place.matrix.endswith('.down') else first}"


def each_expert(
    module: str, pair: Mapping[str, Tensor], places: Sequence[LoraPlace]
) -> list[tuple[LoraPlace, Tensor, Tensor]]:
    """(matrix, A [rank, in], B [out, rank]) of each expert."""
    down, up, count = pair.get("A"), pair.get("B"), len(places) // 2
    if down is None or up is None:
        raise CheckpointError(f"An adapter has only one factor of {module}; its file is cut.")
    if down.dim() != 2 or up.dim() != 2 or not count or len(down) % count or up.shape[1] != len(down) or not len(down):
        raise CheckpointError(
            f"An adapter has factors {list(down.shape)} and {list(up.shape)} of {module}, which are not those of the "
            f"{count} experts of this model; it is of another model."
        )
    mine = [place for place in places if (place.width, sum(place.outs)) == (down.shape[1], len(up))]
    if not mine:
        raise CheckpointError(
            f"An adapter has {down.shape[1]} inputs and {len(up)} outputs for {module}, which no experts of this model "
            "have; it is of another model."
        )
    if len(mine) > count:
        raise CheckpointError(
            f"An adapter has factors of {module}, whose two matrices have the same shape in this model, so that it is "
            "not known for which they are; train one for single modules."
        )
    downs, ups = down.view(count, -1, down.shape[1]), up.view(len(up), -1, count)
    return [(place, downs[number], ups[:, :, number]) for number, place in enumerate(mine)]


def parts_of(spec: ModelSpec, place: LoraPlace, up: Tensor) -> Sequence[Tensor]:
    """The outputs of each module of a matrix."""
    if len(place.outs) == 1:
        return [up]
    return [up[turn::2] for turn in range(2)] if spec.family in GATES_IN_TURN else torch.split(up, [*place.outs])


def unmatched(config: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """One of `target_parameters` that is of experts and none of these modules', by their names in the training. Of
    others PEFT may name what the model does not have."""
    wished = {it for it in config.get("target_parameters") or () if it.endswith(EXPERTS_ENDS)}
    return min(wished.difference(tail for name in names for tail in tails(parameter_of(name))), default=None)
