"""One tool call, {"name": ..., "arguments": {...}}, as it is written."""

import json
from collections.abc import Collection

from paceline.serve.json_reader import JSON_SPACE, JsonReader

NAMES_OF_ARGUMENTS = ("arguments", "parameters")


class CallReader:
    """One object of a call, character by character."""

    def __init__(self, bare: bool, names: Collection[str] = ()) -> None:
        """`bare`: without a marker an object needs arguments to be a call, and one of these `names`, if there are
        any."""
        self._json, self._bare, self._names = JsonReader(), bare, names
        self.name: str | None = None
        self.arguments = ""
        """Arguments read and not fetched yet."""
        self.started = False
        """Are there arguments, or will there be none?"""
        self._key, self._value = "", ""
        self._keys: set[str] = set()

    @property
    def done(self) -> bool:
        return self._json.want == "done"

    def push(self, char: str) -> bool:
        """Take one character; False where it cannot be a call any more."""
        reader = self._json
        begins = len(reader.stack) == 1 and reader.want == "value" and char not in JSON_SPACE
        if not reader.push(char):
            return False
        if begins or self._value:
            if not self._read(char):
                return False
        elif reader.want == "colon" and len(reader.stack) == 1:
            self._key = json.loads(reader.token)
            kind = "arguments" if self._key in NAMES_OF_ARGUMENTS else self._key
            known = kind in self._keys
            self._keys.add(kind)
            return not known
        return not self.done or self._complete()

    def _read(self, char: str) -> bool:
        """`char` begins, continues or ends a value of the call's own object."""
        reader, scalar = self._json, self._value[:1] not in ("", "{", "[", '"')
        inside = not scalar or reader.want == "scalar"  # what ends a scalar is not of it
        if inside and self._key in NAMES_OF_ARGUMENTS and (self._value or char)[0] == "{":
            self._value, self.arguments, self.started = "{", self.arguments + char, True
        elif inside:
            self._value += char
        ended = len(reader.stack) <= 1 and reader.want in ("next", "key", "done")
        if not ended:
            return True
        value, self._value = self._value, ""
        return self._field(value)

    def _field(self, value: str) -> bool:
        if self._key == "name":
            self.name = json.loads(value)
            known = not self._bare or not self._names or self.name in self._names
            return isinstance(self.name, str) and self.name != "" and known
        if self._key in NAMES_OF_ARGUMENTS and value[0] != "{":
            if value != "null" and value[0] != '"':
                return False
            self.arguments, self.started = json.loads(value) or "{}", True
        return True

    def _complete(self) -> bool:
        if not self.started and not self._bare:
            self.arguments, self.started = "{}", True
        return self.started and self.name is not None

    def fetch(self) -> str:
        text, self.arguments = self.arguments, ""
        return text
