"""Write ROOT/peers.json: for each tool its interpreter, worker, modes and converted models.

    python register.py ROOT MODEL DRAFT [WEIGHTS]

WEIGHTS: those to compare, such as 4-bit,8-bit; default: all. `python` null is the interpreter that runs the benchmark.
`modes` lists the k to choose from ([]: the tool's own number); `batches` null is any. `needs` are the files without
which a tool counts as not set up.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
K = [3, 5, 8]
ALL = ("bf16", "8-bit", "4-bit")


def entry(name: str, python: Path | None, models: dict[str, dict[str, str]], **more: Any) -> dict[str, Any]:
    options = more.pop("options", {})
    worker = str(HERE / f"{name}_worker.{more.pop('suffix', 'py')}")
    needs = [worker, *([str(python)] if python else []), *options.values()]
    return {
        "python": str(python) if python else None,
        "worker": worker,
        "modes": {"plain": [], "draft": K, "lookup": K},
        "batches": None,
        "note": None,
        "models": models,
        "options": options,
        "needs": [*needs, *(path for each in models.values() for path in each.values())],
        **more,
    }


def peers(root: Path, model: str, draft: str, weights: Sequence[str] = ALL) -> dict[str, Any]:
    openvino, llamacpp = root / "models/openvino", root / "models/llamacpp"
    original = {"model": model, "draft": draft}
    files = {role: str(root / f"models/paceline/{role}.gguf") for role in original}
    narrow = files if all(Path(file).exists() for file in files.values()) else original  # the files of --gguf

    def peer(name: str, python: Path | None, models: dict[str, dict[str, str]], **more: Any) -> dict[str, Any]:
        return entry(name, python, {each: pair for each, pair in models.items() if each in weights}, **more)

    def pair(folder: Path, suffix: str) -> dict[str, str]:
        return {role: str(folder / f"{role}-{suffix}") for role in original}

    return {
        "paceline": peer(
            "paceline",
            None,
            {"bf16": original, "8-bit": original, "4-bit": narrow},
            modes={"plain": [], "draft": [], "lookup": [], "both": [], "auto": []},
        ),
        "openvino": peer(
            "openvino",
            root / "openvino/bin/python",
            {"bf16": pair(openvino, "fp16"), "8-bit": pair(openvino, "int8"), "4-bit": pair(openvino, "int4")},
        ),
        "llamacpp": peer(
            "llamacpp",
            None,
            {
                "bf16": pair(llamacpp, "bf16.gguf"),
                "8-bit": pair(llamacpp, "q8_0.gguf"),
                "4-bit": pair(llamacpp, "q4_k_m.gguf"),
            },
            options={"server": str(root / "llamacpp/build/bin/llama-server")},
        ),
        "nodellama": peer(
            "nodellama",
            Path(shutil.which("node") or "node"),
            {"4-bit": {role: str(root / f"models/nodellama/{role}.gguf") for role in original}},
            options={"module": str(root / "nodellama/node_modules/node-llama-cpp/dist/index.js")},
            suffix="mjs",
        ),
        "ikllama": peer(
            "ikllama",
            None,
            {"4-bit": {role: str(root / f"models/ikllama/{role}.gguf") for role in original}},
            options={"server": str(root / "ikllama/llama-server")},
        ),
        "transformers": peer(
            "transformers",
            None,
            {"bf16": original},
            batches=[1],
            note="transformers runs at batch 1 in bf16: its assisted generation takes one prompt at a time.",
        ),
    }


if __name__ == "__main__":
    root, model, draft, *some = sys.argv[1:]
    found = peers(Path(root), model, draft, some[0].split(",") if some else ALL)
    content = {"model": model, "draft": draft, "peers": {name: it for name, it in found.items() if it["models"]}}
    Path(root, "peers.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
