"""A checkpoint on disk or hub: where it is, what its config says, and its tensors, read by mmap."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import CheckpointError, memory_ended, no_room_for
from paceline.core.files import check_folder
from paceline.model import checks, gguf, pages
from paceline.model.blockzoo import MANIFEST, SMALL_TENSORS, located, member_at, tensor_digest
from paceline.model.catalogue import CATALOGUE
from paceline.model.families import FAMILIES
from paceline.model.family import MTP_PREFIX, Names
from paceline.model.groups import Groups
from paceline.model.json_files import read_json
from paceline.model.memo import remembered
from paceline.model.opened import once
from paceline.model.pull import pull
from paceline.model.quantised import HEAD_MEMBERS, MXFP4, SIDE_MEMBER, QuantisedLayer, scheme_of
from paceline.model.read_attention import by_layer
from paceline.model.read_spec import read_spec
from paceline.model.recognise import AHEAD_LISTED, HEADS_APART, family_of, text_config
from paceline.model.shards import SHARD_INDEX, check_complete, shard_names
from paceline.model.spec import ModelSpec
from paceline.model.stacked import Scales, expert_part
from paceline.model.tensor_names import number_of_layer, of_further, of_stack, of_text, renamed

WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
TWICE = ("consolidated*", "original/*")
"""Files that hold the same weights again, in the layout of the model's authors."""
WIDE_NUMBER_BYTES = {"F32": 4, "F64": 8}
"""Bytes of a number, by its name in safetensors, where more than 2."""


def resolve(model: str | Path, revision: str | None = None, token: str | None = None) -> Path:
    """The local directory of a path or hub id, downloaded if need be."""
    path = located(model)
    if path.suffix == ".gguf":
        return gguf.resolve(str(model), revision, token)
    if path.is_dir():
        check_folder(path)
        return gguf.only(path)
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the directory that holds config.json and safetensors.")
    if str(model) in CATALOGUE:
        return pull(str(model), token)
    return from_hub(model, revision, token)


def from_hub(model: str | Path, revision: str | None = None, token: str | None = None) -> Path:
    """The local directory of a hub id, downloaded if need be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        where = snapshot_download(
            str(model), revision=revision, token=token, allow_patterns=list(WANTED), ignore_patterns=list(TWICE)
        )
        return Path(where)
    except HFValidationError:
        raise CheckpointError(f"{model} is neither a directory nor a hub id (owner/name).") from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"there is no directory {model}, and the hub could not be reached to look for one of that name; "
            "check the path or the connection."
        ) from None
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"there is no directory {model}, and the hub refused it ({reason}); check the name, the revision and "
            "the token."
        ) from None


def read_config(path: Path, max_len: int | None = None) -> ModelSpec:
    """Refuse what is not served by the raw file, then let transformers parse it; remote code never runs."""
    if path.suffix == ".gguf":
        return gguf.spec_of(gguf.load_header(path), max_len)
    whole = read_json(path / "config.json")
    checks.check_raw(whole)
    raw = dict(text_config(whole))
    checks.check_raw(raw)
    family_of(raw)
    found: ModelSpec = remembered("spec", (raw, max_len), lambda: parsed_spec(path, raw, max_len))
    if whole["model_type"] in HEADS_APART and (found.logit_scale != 1 or found.logit_softcap):
        raise CheckpointError(
            f"{path / 'config.json'}: the text's model of {whole['model_type']} is {found.family}, which scales or "
            "caps its logits; some programs do that there and others do not, so it is not served."
        )
    return found


def parsed_spec(path: Path, raw: dict[str, Any], max_len: int | None) -> ModelSpec:
    """What transformers makes of a config. It takes longer to import than a model to load."""
    from transformers import CONFIG_MAPPING

    try:
        config: Any = CONFIG_MAPPING[raw["model_type"]].from_dict(with_floats(evened(raw)))
    except Exception as error:  # validation raises many types, none of them ours to tell apart
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path / 'config.json'} is not a valid {raw['model_type']} config ({reason}); correct it or download "
            "it again."
        ) from None
    try:
        family = FAMILIES[raw["model_type"]]
        if family.varied:
            config = by_layer(config)
        slides = bool(family.window and getattr(config, family.window))
        checks.check(config, "sliding_attention" if slides else "full_attention")
        if not (family.varied or family.latent):
            checks.check_rotated(config)
        most = checks.longest(config)
        if max_len is not None and not 0 < max_len <= most:
            raise CheckpointError(f"max_len {max_len} is outside 1..{most}, the context that {path} was made for.")
        found = read_spec(config, max_len)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path / 'config.json'} cannot be used ({type(error).__name__}: {error}); correct it or download it again."
        ) from None
    if found.norm_unweighted and any(it.rope.scale != 1 for it in found.attentions):
        raise CheckpointError(
            f"{path / 'config.json'}: this rope scaling of {found.family} multiplies queries and keys by "
            f"{found.attentions[0].rope.scale:.3g} before they are normed, which is not served; llama3 and linear are."
        )
    return found


def evened(raw: dict[str, Any]) -> dict[str, Any]:
    """A config in which a list of equal numbers, one for each layer, is that number. Raises CheckpointError where they
    differ."""
    found = dict(raw)
    for name in FAMILIES[raw["model_type"]].even:
        if isinstance(each := raw.get(name), list):
            if len({*map(str, each)}) != 1:
                raise CheckpointError(f"config.json: {name} differs from layer to layer, which is not served.")
            found[name] = each[0]
    return found


def with_floats(value: Any) -> Any:
    """A config with its infinite numbers, which transformers writes as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return float(value["__float__"]) if {*value} == {"__float__"} else {k: with_floats(v) for k, v in value.items()}
    return [with_floats(item) for item in value] if isinstance(value, list) else value


class Tensors:
    """The tensors of a checkpoint by name. Files are mapped; a tensor is a view of its file."""

    interleaved: bool | None = None
    """Whether pairs of a head that are rotated together lie side by side; None: as the family's do."""
    renamed: Names | None = None
    """Names in place of the family's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {name: self.open(path / name) for name in self.shards()}
        config = read_json(path / "config.json") if (path / "config.json").exists() else {}
        self.stored_as: dict[str, str] = {}
        """Names in the files, of tensors that have another one here."""
        self.place: dict[str, str] = {}
        there = list(self.names())
        check_complete(path, self.files, (theirs for _, _, theirs in there), lambda it: read_in_a_pass(it, config))
        for file, known, theirs in there:
            if (name := kept_name(known, config)) is None:
                continue
            if name != theirs:
                self.stored_as[name] = theirs
            if name in self.place:
                raise CheckpointError(
                    f"tensor {name} is both in {self.place[name]} and in {file} of {path}; keep the right one."
                )
            self.place[name] = file
        family = FAMILIES.get(str(text_config(config).get("model_type")))
        self.predicts = family is not None and family.mtp
        """May it hold a layer for further tokens?"""
        self.layout = "turns" if family is None else family.names.fused_experts
        self.taken: set[str] = set()
        self.experts: dict[str, int] = {}
        """How many experts were taken of a tensor that holds several."""
        self.read: list[Tensor] = []
        self.scheme = scheme_of(text_config(config))
        self.word = "" if self.scheme is None else self.scheme.word

    def ahead(self) -> set[str]:
        """Names of the tensors of a layer for further tokens (draft/mtp.py)."""
        return {name for name in self.place if self.predicts and name.startswith(MTP_PREFIX)}

    def names(self) -> Iterator[tuple[str, str, str]]:
        """(file, name of a tensor, its name in the file)"""
        for file, handle in self.files.items():
            for name in handle.keys():  # noqa: SIM118
                yield file, name, name

    def shards(self) -> list[str]:
        return shard_names(self.path)

    def open(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(file, framework="pt")
        except FileNotFoundError:
            raise CheckpointError(f"{file} is listed in {SHARD_INDEX} but missing; download it again.") from None
        except (SafetensorError, OSError, MemoryError, RuntimeError) as error:
            if memory_ended(error):
                raise no_room_for(file) from error
            if isinstance(error, RuntimeError):
                raise
            raise CheckpointError(f"{file} is truncated or damaged ({error}); download it again.") from None

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor `name`, which must have `shape`, in the file's dtype or the one given."""
        if (layer := self.layer(name, shape)) is not None and self.scheme is not None:
            found = self.scheme.read(layer)
            wide = found.floats() if isinstance(found, Groups) else found
            return wide if dtype is None else wide.to(dtype)
        if (part := expert_part(name, self.place, self.layout)) is not None:
            packed = not part.bias and part.fused not in self.place
            self.count(part.fused, part.number)
            fp8 = self.scheme is not None and self.scheme.float8
            scales = Scales(self.stored, self.place.__contains__, self.scheme.block) if self.scheme and fp8 else None
            found = part.groups(self.stored, shape).floats() if packed else part.take(self.stored, shape, scales)
            return found if dtype is None else found.to(dtype)
        tensor = self.stored(name, shape)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            if self.scheme is None:
                raise self.unsaid(f"{name} (stored as {tensor.dtype})")
            raise CheckpointError(f"tensor {name} is stored as {tensor.dtype}, a quantised form, which is not served.")
        return tensor if dtype is None else tensor.to(dtype)

    def layer(self, name: str, shape: tuple[int, ...]) -> QuantisedLayer | None:
        """The quantised layer whose weight has this name, if it is one."""
        stem = name.removesuffix(".weight")
        if self.scheme is None or stem == name or len(shape) != 2 or f"{stem}.{self.scheme.mark}" not in self.place:
            return None
        if self.scheme.mark == "weight" and not self.kind(name).startswith(("F8", "I8")):
            return None

        def take(member: str, expected: tuple[int, ...] | None) -> Tensor:
            return self.stored(f"{stem}.{member}", expected)

        return QuantisedLayer(stem, (shape[0], shape[1]), take, lambda member: f"{stem}.{member}" in self.place)

    def stored(self, name: str, shape: tuple[int, ...] | None) -> Tensor:
        """A tensor as it is in the file, whatever its type; `shape`: as in `take`, or None for any."""
        name, number = of_stack(name)
        if number is not None and name not in self.place:
            name = name.removesuffix(".weight")
        view = self.view(name)
        found = tuple(view.get_shape())
        if number is not None and found and number < found[0]:
            found = found[1:]
            self.count(name, number)
        if shape is not None and found != shape:
            raise CheckpointError(
                f"tensor {name} in {self.path / self.place[name]} has shape {tuple(view.get_shape())} where "
                f"config.json implies {shape}; the weights and the config are of different models."
            )
        self.taken.add(name)
        tensor: Tensor = self.files[self.place[name]].get_tensor(self.stored_as.get(name, name))
        self.read.append(tensor)
        return tensor if number is None else tensor[number]

    def view(self, name: str) -> Any:
        """What says shape and type of a tensor."""
        if name not in self.place:
            stem = name.removesuffix("weight")
            if self.scheme is None and any(stem + it in self.place for it in ("qweight", "weight_packed")):
                raise self.unsaid(name)
            raise CheckpointError(f"tensor {name} is missing from {self.path}; download the checkpoint again.")
        return self.files[self.place[name]].get_slice(self.stored_as.get(name, name))

    def groups(self, name: str, shape: tuple[int, ...]) -> Groups | None:
        """A matrix as whole numbers with a scale for each group, exactly; None: it is stored as floats."""
        part = expert_part(name, self.place, self.layout)
        if part is not None and part.fused not in self.place:
            self.count(f"{part.fused}_blocks", part.number)
            return part.groups(self.stored, shape)
        if (layer := self.layer(name, shape)) is None or self.scheme is None:
            return None
        found = self.scheme.read(layer)
        return found if isinstance(found, Groups) else None

    def bits(self, name: str) -> float | None:
        """Bits per weight, its scales included, if the matrix is kept as packed groups; None: it is stored as
        floats."""
        stem = name.removesuffix(".weight")
        part = expert_part(name, self.place, self.layout)
        if part is not None and part.fused not in self.place:
            return MXFP4
        if self.scheme is None or f"{stem}.{self.scheme.mark}" not in self.place:
            return None
        whole = self.scheme.mark != "weight" or self.kind(name) == "I8"
        return self.scheme.bits if whole and f"{stem}.weight_g_idx" not in self.place else None

    def unsaid(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"tensor {name} is quantised, but config.json is without a quantization_config that says how; download it "
            "again, or put the settings there if another file has them."
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.view(name).get_shape())

    def told(self, name: str) -> float | None:
        """A number that the file holds next to its tensors; None: there is no such number."""
        return None

    def kind(self, name: str) -> str:
        """Name of the form in which it is stored."""
        return str(self.view(name).get_dtype())

    def let_go(self) -> None:
        """Give back the memory of the pages that tensors taken so far were read from; a later read makes
        the system read it again. Without it a checkpoint lies in memory twice while it is loaded."""
        for tensor in self.read:
            pages.give_back(tensor)
        self.read.clear()

    def count(self, name: str, number: int) -> None:
        self.experts[name] = max(self.experts.get(name, 0), number + 1)

    def leftover(self) -> Iterator[str]:
        """Names that nothing took, other than those that carry no weights of their own."""
        for name, count in self.experts.items():
            if name in self.place and self.shape(name)[0] > count:
                yield f"{name}, expert {count}"
        for name in self.place:
            if self.predicts and name.startswith(MTP_PREFIX):
                continue
            if name not in self.taken and not self.of_activations(name) and name != "lm_head.weight":
                yield name

    def of_activations(self, name: str) -> bool:
        """Whether a tensor says how others round activations, keys or values of a quantised layer."""
        found = None if self.scheme is None else SIDE_MEMBER.fullmatch(name)
        if found is None or self.scheme is None:
            return False
        stem, member = found.groups()
        marked = f"{stem}.{self.scheme.mark}"
        of_layer = marked in self.place and (self.scheme.mark != "weight" or self.kind(marked).startswith(("F8", "I8")))
        fused = stem in self.place or f"{stem}_blocks" in self.place
        if of_layer or fused or (member in HEAD_MEMBERS and ("att" in stem or stem.endswith("_proj"))):
            return True
        weight = f"{stem}.weight"  # a layer that was left as it is
        matrix = stem == "lm_head" or (weight in self.taken and len(self.shape(weight)) == 2)
        return member not in HEAD_MEMBERS and matrix

    def says_nothing(self, name: str) -> bool:
        """Whether a tensor that nothing took is a bias of zeros alone, as GPTQ's writers add to each layer."""
        return name.endswith(".bias") and not bool(
            self.files[self.place[name]].get_tensor(self.stored_as.get(name, name)).any()
        )

    def widest(self) -> int:
        """Bytes of a number in the widest of them."""
        views = map(self.view, self.place)
        return max((WIDE_NUMBER_BYTES.get(view.get_dtype(), 2) for view in views), default=2)

    def paths(self) -> list[Path]:
        """The files, and the config that says what they are."""
        return [self.path / "config.json", *(self.path / file for file in self.files)]

    def bytes(self) -> int:
        return sum((self.path / file).stat().st_size for file in self.files)


def kept_name(name: str, config: Mapping[str, Any]) -> str | None:
    """The name here of a file's tensor; None: it belongs to a part that is left out."""
    text, kind = text_config(config), str(config.get("model_type"))
    found = renamed(name, kind) if text is config else of_text(name)
    if found is None or of_further(found, text) or (kind in AHEAD_LISTED and found.startswith(MTP_PREFIX)):
        return None
    return found


def read_in_a_pass(name: str, config: Mapping[str, Any]) -> bool:
    """Does a pass read a file's tensor of this name? A layer for further tokens is read by a drafter alone, which looks
    for its parts itself."""
    found, layers = kept_name(name, config), text_config(config).get("num_hidden_layers")
    if found is None or of_text(name) is None or found.startswith(MTP_PREFIX):
        return False
    number = number_of_layer(found)
    return number is None or not isinstance(layers, int) or number < layers


class ZooTensors(Tensors):
    """Tensors of a model in a zoo (blockzoo.py). CheckpointError for a matrix that its digest does not match."""

    def __init__(self, path: Path) -> None:
        self.member = member_at(path)
        self.blob = {f"../../blobs/{digest}": digest for digest in self.member.tensors.values()}
        super().__init__(path)

    def shards(self) -> list[str]:
        return [SMALL_TENSORS, *self.blob]

    def names(self) -> Iterator[tuple[str, str, str]]:
        for name in self.files[SMALL_TENSORS].keys():  # noqa: SIM118
            yield SMALL_TENSORS, name, name
        for name, digest in self.member.tensors.items():
            yield f"../../blobs/{digest}", name, "it"

    def open(self, file: Path) -> Any:
        if not file.exists():
            raise CheckpointError(f"{self.path.name} in the zoo lacks {file.name}; add the model again.")
        return super().open(file)

    def stored(self, name: str, shape: tuple[int, ...] | None) -> Tensor:
        tensor = super().stored(name, shape)
        whole, _ = of_stack(name)
        digest = self.blob.get(self.place[whole])
        if digest is not None and tensor_digest(self.read[-1]) != digest:
            raise CheckpointError(
                f"{whole} of {self.path.name} in the zoo is damaged: its bytes do not match the digest {digest[:12]}; "
                "remove the models that have it and add them again."
            )
        return tensor

    def paths(self) -> list[Path]:
        return [self.path / name for name in ("config.json", MANIFEST, SMALL_TENSORS)]


def open_tensors(path: Path) -> "Tensors | gguf.GgufTensors":
    """The weights of a checkpoint, whatever its format."""

    def opened() -> "Tensors | gguf.GgufTensors":
        if path.suffix == ".gguf":
            return gguf.GgufTensors(path)
        return ZooTensors(path) if (path / MANIFEST).is_file() else Tensors(path)

    return once(path, opened)


DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
