"""Server-sent events from bytes that come in any pieces (WHATWG HTML, section 9.2.6)."""

BOM = b"\xef\xbb\xbf"


class Events:
    """`feed` bytes, get the data of the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        """A line that has not ended."""
        self._data: list[bytes] = []
        """Data lines of an event that has not ended."""
        self._skip_newline = False
        """The last byte was a carriage return; a newline after it belongs to it."""
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each completed event, in order; an event without data is none."""
        if self._skip_newline and data:
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        text = self._rest + data
        if not self._begun:
            if len(text) < len(BOM) and BOM.startswith(text):
                self._rest = text
                return []
            text, self._begun = text.removeprefix(BOM), True
        if b"\r" in text:
            self._skip_newline = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        """Take one line; the event's data where it is the empty line that ends one."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        data, self._data = self._data, []
        return b"\n".join(data) if data else None
