"""GGUF files: llama.cpp's format, with the weights of a model, its tokenizer and its settings in one."""

from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.model.gguf.config import spec_of
from paceline.model.gguf.tensors import GgufTensors, load_header, parts_of
from paceline.model.gguf.tokenizer import Vocabulary, defaults_of, tokenizer_of

__all__ = ["GgufTensors", "load_header", "only", "resolve", "spec_of", "text_of"]


def resolve(model: str, revision: str | None = None, token: str | None = None) -> Path:
    """The first file of a path, or of owner/name:FILE.gguf on the hub, downloaded if need be with all its parts."""
    path = Path(model).expanduser()
    if path.is_file():
        return parts_of(path)[0]
    name, colon, file = model.partition(":")
    if not colon:
        raise CheckpointError(f"there is no file {path}; of a file on the hub say owner/name:{path.name}.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        parts = [hf_hub_download(name, str(part), revision=revision, token=token) for part in parts_of(Path(file))]
        return Path(parts[0])
    except HFValidationError:
        raise CheckpointError(f"{model} is neither a file nor owner/name:FILE.gguf of the hub.") from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"there is no file {model}, and the hub could not be reached to look for one of that name; check the path "
            "or the connection."
        ) from None
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"there is no file {model}, and the hub refused it ({reason}); check the name, the revision and the token."
        ) from None


def text_of(path: Path) -> tuple[Any, dict[str, Any]]:
    """The tokenizer of a file, and what generation_config.json would say, with every id that ends a text."""
    header = load_header(path)
    return tokenizer_of(header), {**defaults_of(header), "eos_token_id": sorted(Vocabulary(header).ends)}


def only(directory: Path) -> Path:
    """The directory, or its one model in GGUF if it holds nothing else to load."""
    if (directory / "config.json").exists():
        return directory
    models = sorted({parts_of(file)[0] for file in directory.glob("*.gguf")})
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:5])
        raise CheckpointError(f"{directory} holds {len(models)} GGUF models ({names}); give the path of one of them.")
    return models[0] if models else directory
