"""Tokenizer, chat template and generation defaults of a checkpoint, read by transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError, InputError

Message = Mapping[str, Any]


class Text:
    """Text in, token ids out, and back. Raises CheckpointError when the checkpoint has no usable tokenizer."""

    def __init__(self, path: Path, chat_template: str | Path | None = None) -> None:
        """`chat_template`: a file in place of the checkpoint's template; InputError where it cannot be used."""
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        except Exception as error:
            raise CheckpointError(
                f"No usable tokenizer in {path} ({type(error).__name__}: {error}); tokenizer.json is expected there."
            ) from error
        if chat_template is not None:
            self.tokenizer.chat_template = read_template(Path(chat_template))
        self.path = path
        self.defaults = read_json(path / "generation_config.json")

    def encode(self, text: str) -> list[int]:
        """Token ids with the checkpoint's own special tokens (bos where it adds one)."""
        return list(self.tokenizer.encode(text))

    def chat(self, messages: Sequence[Message], **template_args: Any) -> list[int]:
        """Token ids of a conversation by the checkpoint's chat template, up to where the answer begins."""
        if not messages:
            raise InputError("The conversation is empty; give at least one message.")
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(f"{self.path} has no chat template; use generate with a prompt instead.")
        args = {"add_generation_prompt": True, **template_args}
        try:
            text = self.tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False, **args)
        except Exception as error:
            raise InputError(
                f"The chat template refused the messages ({error}); roles and contents are expected."
            ) from error
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def eos(self) -> frozenset[int]:
        """Every id that ends a text: generation_config.json, else config.json, else the tokenizer's."""
        for source in (self.defaults, read_json(self.path / "config.json")):
            ids = source.get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
        own = self.tokenizer.eos_token_id
        return frozenset() if own is None else frozenset([own])

    def vocabulary(self, size: int) -> dict[str, int]:
        """{token: id} of the ids that a model with `size` logits can draw."""
        return {token: i for token, i in self.tokenizer.get_vocab().items() if i < size}


def read_template(path: Path) -> str:
    """The source of a chat template. InputError when it cannot be read or is no Jinja template."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        source = path.read_text(encoding="utf-8")
        _compile_jinja_template(source)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"chat_template {path} cannot be read ({error}); give a file with a template.") from None
    except Exception as error:
        raise InputError(f"chat_template {path} is no Jinja template ({error}); mend it.") from None
    return source


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, {} when there is none."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} does not parse as JSON ({error}); restore it from its source.") from error
