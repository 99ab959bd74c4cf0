"""The answer in a model's reply."""

import re

SURGE_HEADING = re.compile(r"^\W{0,4}(?:final\s+)?output\W{0,4}:\*{0,2}[ \t]*", re.IGNORECASE | re.MULTILINE)
FENCED_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
INLINE = re.compile(r"\A`([^`\n]+)`[.\s]*\Z")


def answer(reply: str) -> str:
    """What stands behind the last heading "Output:", in the first fence there if there is one; else all of it."""
    headings = list(SURGE_HEADING.finditer(reply))
    text = reply[headings[-1].end() :] if headings else reply
    fenced = FENCED_BLOCK.search(text)
    if fenced:
        return trimmed(fenced.group(1))
    inline = INLINE.match(text.strip())
    return trimmed(inline.group(1) if inline else text)


def trimmed(text: str) -> str:
    """Without empty lines around, blanks at the ends of lines, and carriage returns."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)
