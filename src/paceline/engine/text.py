"""Tokenizer, chat template and generation defaults of a checkpoint, read by transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError, InputError

Message = Mapping[str, Any]


class Text:
    """Text in, token ids out, and back. Raises CheckpointError when the checkpoint has no usable tokenizer."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a library of another language panics past Exception
            raise CheckpointError(
                f"No usable tokenizer in {path} ({type(error).__name__}: {error}); tokenizer.json is expected there."
            ) from error
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, {} when there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} does not parse as JSON ({error}); restore it from its source.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; restore it from its source.")
    return content
