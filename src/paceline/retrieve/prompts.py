"""`QuestionPrompts`: what the model reads with each passage, and what is asked of the retriever."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError
from paceline.retrieve.passages import Passage
from paceline.retrieve.wish import Retrieval

if TYPE_CHECKING:
    from paceline.engine.text import Message, Text

TEMPLATE_FIELD = re.compile(r"\{(question|passage|title)\}")
PASSAGE_SLACK_TOKENS = 16
"""Maximum number of extra tokens of a passage within its prompt over the passage alone."""


class QuestionPrompts:
    """Prompts for one question: a text, or a conversation whose last message is the user's."""

    def __init__(
        self, text: "Text", question: "str | Sequence[Message]", passages: Sequence[Passage], wish: Retrieval,
        args: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`args`: variables of the chat template. InputError for a conversation that ends otherwise."""
        self.text, self.passages, self.wish = text, passages, wish
        self._made: dict[int, list[int]] = {}
        if isinstance(question, str):
            self.question, self._read = question, text.encode
        else:
            self.question = asked(question)
            self._read = partial(self._chat, list(question), dict(args or {}))
        self._asked = list(text.tokenizer.encode(self.question, add_special_tokens=False))
        self.bare = self._read(self.question)
        """The question alone, token ids."""

    def _chat(self, messages: "list[Message]", args: dict[str, Any], content: str) -> list[int]:
        return self.text.chat([*messages[:-1], {**messages[-1], "content": content}], **args)

    def of(self, number: int) -> list[int]:
        """Token ids of the prompt with this passage."""
        if number not in self._made:
            passage = self.passages[number]
            self._made[number] = self._read(self._filled(self._cut(passage.text), passage.title))
        return self._made[number]

    def _filled(self, passage: str, title: str) -> str:
        values = {"question": self.question, "passage": passage, "title": title}
        return TEMPLATE_FIELD.sub(lambda found: values[found[1]], self.wish.template)

    def _cut(self, passage: str) -> str:
        ids = list(self.text.tokenizer.encode(passage, add_special_tokens=False))
        return passage if len(ids) <= self.wish.passage_tokens else self.text.decode(ids[: self.wish.passage_tokens])

    @property
    def longest(self) -> int:
        """Upper bound of a prompt's tokens, with `PASSAGE_SLACK_TOKENS` tokens for a title."""
        return len(self._read(self._filled("", ""))) + self.wish.passage_tokens + PASSAGE_SLACK_TOKENS

    def query(self, output: Sequence[int]) -> str:
        """The newest tokens of question and answer as text."""
        return self.text.decode([*self._asked, *output][-self.wish.query_tokens :])


def asked(messages: "Sequence[Message]") -> str:
    """The text of the last message, the user's."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, list | tuple) and all(part.get("type") == "text" for part in content):
        content = "\n".join(part["text"] for part in content)
    if last.get("role") != "user" or not isinstance(content, str) or not content.strip():
        raise InputError("Retrieval needs a conversation whose last message is the user's and has a text.")
    return content
