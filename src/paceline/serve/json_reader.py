"""Is this text the beginning of a JSON value? Asked character by character (RFC 8259)."""

import re

JSON_SPACE = " \t\n\r"
SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
CLOSER = {"{": "}", "[": "]"}


class JsonReader:
    """Reads one object or array. `want` is what may come next:

    value, first (a value or the end of an array), key, first key (a key or the end of an object), colon, next (a comma
    or an end), done; inside a token: string, key string, scalar.
    """

    def __init__(self) -> None:
        self.want = "value"
        self.stack: list[str] = []
        """What is open, the innermost last."""
        self.token = ""
        """The key of the outermost object, with its quotes, or the scalar that is read or was read last."""
        self._escape = ""
        """The escape sequence that is read."""

    def push(self, char: str) -> bool:
        """Take one character; False where it cannot stand, after which the reader is of no use."""
        if self.want in ("string", "key string"):
            return self._string(char)
        if self.want == "scalar":
            if char.isalnum() or char in "+-.":
                self.token += char
                return True
            if not SCALAR.fullmatch(self.token):
                return False
            self._end()
        return char in JSON_SPACE or self._structure(char)

    def _string(self, char: str) -> bool:
        if self.want == "key string" and len(self.stack) == 1:
            self.token += char
        if self._escape:
            self._escape += char
            if self._escape[1] != "u":
                known, self._escape = self._escape[1] in '"\\/bfnrt', ""
                return known
            legal = len(self._escape) == 2 or char in "0123456789abcdefABCDEF"
            self._escape = "" if len(self._escape) == 6 else self._escape
            return legal
        if char == "\\":
            self._escape = char
        elif char == '"':
            if self.want == "key string":
                self.want = "colon"
            else:
                self._end()
        return char >= " "

    def _structure(self, char: str) -> bool:
        want = self.want
        if want in ("value", "first"):
            if char in "{[":
                self.stack.append(char)
                self.want = "first key" if char == "{" else "first"
            elif not self.stack:
                return False
            elif char == '"':
                self.token, self.want = char, "string"
            elif char in "-0123456789tfn":
                self.token, self.want = char, "scalar"
            else:
                return want == "first" and self._close(char)
            return True
        if want in ("key", "first key"):
            if char != '"':
                return want == "first key" and self._close(char)
            self.token, self.want = char, "key string"
            return True
        if want == "colon" and char == ":":
            self.want = "value"
            return True
        if want == "next" and char == ",":
            self.want = "key" if self.stack[-1] == "{" else "value"
            return True
        return want == "next" and self._close(char)

    def _close(self, char: str) -> bool:
        if CLOSER[self.stack[-1]] != char:
            return False
        self.stack.pop()
        self._end()
        return True

    def _end(self) -> None:
        self.want = "next" if self.stack else "done"
