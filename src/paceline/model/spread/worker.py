"""A process that holds some experts of a model, or a part of each of its matrices: `python -m
paceline.model.spread.worker`, started by `ranks`.

One line of JSON comes in first. It answers `ready DIGEST`, or `error` and a sentence; after one more line it meets the
others, and then each message is a mixture of a pass. It ends where its input does.
"""

import json
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import torch

from paceline.core.errors import PacelineError
from paceline.model.blocks import Mixture
from paceline.model.checkpoint import DTYPES, open_tensors, read_config
from paceline.model.families import FAMILIES
from paceline.model.linear import unfused
from paceline.model.loader import Loader
from paceline.model.spread.exchange import Exchange
from paceline.model.spread.mixture import ExpertShare, MixturePart

MESSAGE = struct.Struct("<ii")
"""Layer, or REPORT, and rows of the pass; one byte for the home of each row follows."""
REPORT = -1
"""In place of a layer: say how many bytes went out."""


def parts_of(path: Path, dtype: str, share: ExpertShare) -> tuple[dict[int, MixturePart], str]:
    """A process's part of every mixture of a checkpoint, by layer, and the digest of its weights."""
    spec, tensors = read_config(path), open_tensors(path)
    packing = unfused(DTYPES[dtype])
    names = tensors.renamed or FAMILIES[spec.family].names
    loader = Loader(spec, names, tensors, packing, torch.device("cpu"), held=share.held, whole=False)
    parts = {}
    for layer in share.places:
        mixture = loader.feed(names.layer.format(layer), layer)
        assert isinstance(mixture, Mixture)
        parts[layer] = part_of(mixture, layer, share, spec.hidden, packing.compute)
        tensors.let_go()
    return parts, loader.fingerprint.digest()


def part_of(mixture: Mixture, layer: int, share: ExpertShare, hidden: int, dtype: torch.dtype) -> MixturePart:
    """A mixture that was loaded for this share."""
    experts = dict(zip(share.held(layer), mixture.experts, strict=True))
    return MixturePart(mixture.form, mixture.router, mixture.correction, share.places[layer], experts, hidden, dtype)


@torch.inference_mode()
def serve(source: BinaryIO, parts: dict[int, MixturePart], exchange: Exchange) -> None:
    """Take part in every mixture until the input ends."""
    while len(head := source.read(MESSAGE.size)) == MESSAGE.size:
        layer, rows = MESSAGE.unpack(head)
        if layer == REPORT:
            print(json.dumps(exchange.sent), flush=True)
            continue
        if len(homes := source.read(rows)) < rows:
            return
        parts[layer].run(exchange, torch.frombuffer(bytearray(homes), dtype=torch.uint8).to(torch.int64), None)


def main() -> int:
    """The process. Its exit code is 1 where the others are gone."""
    source = sys.stdin.buffer
    about = json.loads(source.readline())
    torch.set_num_threads(about["threads"])
    if about["kind"] == "tensors":
        from paceline.model.spread.tensors import work

        return work(about, source)
    places = {int(layer): torch.tensor(place) for layer, place in about["places"].items()}
    share = ExpertShare(about["rank"], places)
    try:
        parts, digest = parts_of(Path(about["path"]), about["dtype"], share)
    except PacelineError as error:
        print("error", " ".join(str(error).split()), flush=True)
        return 2
    print("ready", digest, flush=True)
    if not source.readline():
        return 0
    try:
        serve(source, parts, Exchange(Path(about["meeting"]), about["rank"], about["devices"]))
    except RuntimeError:  # one of the others has ended: the first process says so
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
