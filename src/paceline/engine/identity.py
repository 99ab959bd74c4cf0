"""Names of what made K/V: blocks in a prefix cache, on disk and in parked requests are kept apart by them."""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.component import TARGET, Component, keeps_rows

HASH_CHUNK_BYTES = 1 << 22
"""Bytes of a file that are hashed at a time."""
ARITHMETIC = 2
"""Number of changes of what a pass computes from the same weights: K/V of an earlier number is another model's."""


def identity_of(component: Component) -> str:
    """Digest of what a component computes, in hexadecimal digits: its `identity`, else that of its `weight_files`. A
    component that has neither gets a random one: it shares nothing beyond its engine."""
    holder: Any = component
    known = getattr(holder, "identity", "")
    if not known:
        files = getattr(holder, "weight_files", ())
        known = digest_of(files) if files else secrets.token_hex(16)
        holder.identity = known
    return str(known)


def digest_of(files: tuple[Path, ...]) -> str:
    """Digest of the content of files, 32 hexadecimal digits; a random one where they cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in files:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while part := file.read(HASH_CHUNK_BYTES):
                    digest.update(part)
    except OSError:
        return secrets.token_hex(16)
    return digest.hexdigest()[:32]


def form_of(component: Component) -> str:
    """Name, 32 hexadecimal digits, of the K/V and states that a component keeps: equal names mean equal numbers for
    equal texts. It depends on what the component computes and on the arithmetic of this machine."""
    describe = getattr(component, "describe", None)
    model = getattr(component, "model", None)
    parts = (ARITHMETIC, identity_of(component), describe() if describe else "", str(getattr(model, "unit", "")),
             component.kv_bytes_per_token, getattr(component, "state_bytes", 0))  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def forms_of(components: Mapping[str, Component]) -> dict[str, str]:
    """{group: form} of the components that keep K/V or states."""
    return {name: form_of(it) for name, it in components.items() if keeps_rows(it)}


def root_of(components: Mapping[str, Component]) -> bytes:
    """What the names of all blocks of an engine begin with: the form of its target."""
    return bytes.fromhex(form_of(components[TARGET]))
