"""Tokenizer, chat template and generation defaults of a checkpoint, read by transformers."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.core.errors import CheckpointError, InputError
from paceline.core.files import text_of
from paceline.engine.conversation import RoleForm, form, shape_all
from paceline.engine.templates import (
    TEMPLATE_TRIAL_S,
    EndlessTemplateError,
    bound_templates,
    compile_template,
    render_seconds,
    within,
)
from paceline.model.memo import remembered, states
from paceline.model.unindexed import submodules_alone

Message = Mapping[str, Any]
WEIGHT_FILES = {".safetensors", ".bin", ".gguf", ".pt", ".pth"}
MOST_QUOTED_CHARS = 500
"""Length limit of another library's error in a message."""
MOST_ROLES = 32
"""Names of roles that are remembered."""
TEMPLATE_AGAIN_S = 60.0
"""Seconds until a template that took too long is tried again: its first rendering may have been slow for once."""


class Text:
    """Text in, token ids out, and back. Raises CheckpointError when the checkpoint has no usable tokenizer."""

    def __init__(self, path: Path, chat_template: str | Path | None = None) -> None:
        """`path`: a directory in Hugging Face layout, or a GGUF file. `chat_template`: a file in place of the
        checkpoint's template; InputError where it cannot be used."""
        self.path = path
        self._forms: dict[str, RoleForm] = {}
        self._endless_until = -math.inf
        """Till when no messages are rendered: the template did not come to an end with a single word."""
        bound_templates()
        self.defaults: dict[str, Any] = {}
        if path.suffix == ".gguf":
            from paceline.model.gguf import text_of

            self.tokenizer, self.defaults = text_of(path)
            if chat_template is not None:
                self.tokenizer.chat_template = read_template(Path(chat_template))
            return
        try:
            self.tokenizer = tokenizer(path)
            self.tokenizer.decode(self.tokenizer.encode("a"))  # settings of a wrong type show only here
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a library of another language panics past Exception
            raise CheckpointError(
                f"No usable tokenizer in {path} ({type(error).__name__}: {in_line(error)}); "
                "tokenizer.json is expected there."
            ) from error
        if chat_template is not None:
            self.tokenizer.chat_template = read_template(Path(chat_template))
        self.defaults = read_json(path / "generation_config.json")

    def encode(self, text: str) -> list[int]:
        """Token ids with the checkpoint's own special tokens (bos where it adds one)."""
        return list(self.tokenizer.encode(text))

    def chat(self, messages: Sequence[Message], **template_args: Any) -> list[int]:
        """Token ids of a conversation by the checkpoint's chat template, up to where the answer begins."""
        return list(self.tokenizer.encode(self.render(messages, **template_args), add_special_tokens=False))

    def render(self, messages: Sequence[Message], **template_args: Any) -> str:
        """Conversation as text. Raises InputError for messages that the template refuses or would not show."""
        if not messages:
            raise InputError("The conversation is empty; give at least one message.")
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(f"{self.path} has no chat template; use generate with a prompt instead.")
        args = {"add_generation_prompt": True, **template_args}
        try:
            mine = shape_all(messages, self._form)
            apply = partial(self.tokenizer.apply_chat_template, mine, tokenize=False, **args)
            return str(within(render_seconds(len(mine), len(args.get("tools") or ())), apply, [mine, args]))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"The chat template refused the messages ({in_line(error)}); roles and contents are expected."
            ) from error

    def _form(self, role: str) -> RoleForm:
        """How the template reads this role's content; tried once."""
        endless = EndlessTemplateError(
            f"The chat template takes more than {TEMPLATE_TRIAL_S:g} s of a processor for short messages; it is "
            f"tried again after {TEMPLATE_AGAIN_S:g} s; give another as chat_template."
        )
        if time.monotonic() < self._endless_until:
            raise endless
        if role not in self._forms:
            compile_template(self.tokenizer.chat_template)
            end = time.thread_time() + TEMPLATE_TRIAL_S

            def render(messages: list[Message]) -> str:
                mine = [dict(message) for message in messages]
                apply = partial(self.tokenizer.apply_chat_template, mine, tokenize=False, add_generation_prompt=True)
                return str(within(end - time.thread_time(), apply, mine))

            if len(self._forms) >= MOST_ROLES:
                self._forms.clear()
            try:
                self._forms[role] = form(render, role)
            except EndlessTemplateError:
                self._endless_until = time.monotonic() + TEMPLATE_AGAIN_S
                raise endless from None
        return self._forms[role]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def eos(self) -> list[Any]:
        """What is said to be an id that ends a text, unchecked: generation_config.json's, else config.json's, and the
        tokenizer's own, with which chat templates end a turn."""
        own = self.tokenizer.eos_token_id
        ends = [] if own is None else [own]
        for source in (self.defaults, read_json(self.path / "config.json")):
            ids = source.get("eos_token_id")
            if ids is not None:
                return [*ends, *(ids if isinstance(ids, list) else [ids])]
        return ends

    def vocabulary(self, size: int) -> dict[str, int]:
        """{token: id} of the ids that a model with `size` logits can draw."""
        return {token: i for token, i in self.tokenizer.get_vocab().items() if i < size}

    @property
    def size(self) -> int:
        """Ids that the tokenizer knows: what a model has beyond them is padding."""
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)


def tokenizer(path: Path) -> Any:
    """The checkpoint's tokenizer as transformers reads it. Which of its classes that is takes it a second to find out,
    so that is kept for the next start."""
    small = [it for it in sorted(path.iterdir()) if it.is_file() and it.suffix not in WEIGHT_FILES]
    found: list[Any] = []

    def search() -> str:
        from transformers import AutoTokenizer

        found.append(AutoTokenizer.from_pretrained(str(path), trust_remote_code=False))
        kind = type(found[0])
        return f"{kind.__module__}:{kind.__qualname__}"

    module, _, name = str(remembered("tokenizer", states(small), search)).partition(":")
    if not found and module.startswith("transformers."):
        submodules_alone()
        found.append(getattr(import_module(module), name).from_pretrained(str(path)))
    elif not found:
        search()
    return found[0]


def in_line(error: BaseException) -> str:
    """The message of another library's error as one short line."""
    return " ".join(str(error).split())[:MOST_QUOTED_CHARS]


def read_template(path: Path) -> str:
    """The source of a chat template. InputError when it cannot be read or is no Jinja template."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    source = text_of(path, "chat_template")
    if not source.strip() or "\0" in source:
        raise InputError(f"chat_template {path} {'holds NUL characters' if source.strip() else 'is empty'}; mend it.")
    bound_templates()
    try:
        _compile_jinja_template(source)
    except Exception as error:
        raise InputError(f"chat_template {path} is not a Jinja template ({in_line(error)}); mend it.") from None
    return source


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
