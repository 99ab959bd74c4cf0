"""The answer in a model's reply."""

import re

SURGE_HEADING = re.compile(r"^\W{0,4}(?:final\s+)?output\W{0,4}:\*{0,2}[ \t]*", re.IGNORECASE | re.MULTILINE)
FENCED_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
INLINE = re.compile(r"\A`([^`\n]+)`[.\s]*\Z")


def answer(reply: str) -> str:
    """What stands behind the last heading "Output:", in the first fence there if there is one; else all of it."""
    begin, end = span(reply)
    return trimmed(reply[begin:end])


def span(reply: str) -> tuple[int, int]:
    """Where the answer begins and ends in a reply, in characters."""
    headings = list(SURGE_HEADING.finditer(reply))
    begin = headings[-1].end() if headings else 0
    if fenced := FENCED_BLOCK.search(reply, begin):
        return fenced.span(1)
    if inline := INLINE.match(reply[begin:].strip()):
        begin += len(reply[begin:]) - len(reply[begin:].lstrip())
        return begin + inline.start(1), begin + inline.end(1)
    return begin, len(reply)


def is_answer(reply: str) -> bool:
    """Whether a reply has an answer: no bare fence, and no fence that is not closed."""
    begin, end = span(reply)
    return bool(reply[begin:end].strip(" \t\r\n`")) and "```" not in reply[begin:end] and closed(reply, end)


def closed(reply: str, end: int) -> bool:
    """Whether the fence before a place is closed there, if there is one."""
    return reply[:end].count("```") % 2 == 0 or reply[end:].lstrip("\n").startswith("```")


def trimmed(text: str) -> str:
    """Without empty lines around, blanks at the ends of lines, and carriage returns."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)
