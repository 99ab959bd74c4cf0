"""Addresses as they may be shown: without the password that a user writes into one."""

import re
from urllib.parse import quote, quote_plus

MASK = "***"
USER_AND_SECRET = re.compile(
    r"(?is)((?>(?:[\w+.-]+://+|(?:jdbc:|postgres\w*:|mysql\w*:|mariadb\w*:){1,2}/*)?)[^:/@\s]*):.*@"
)
"""The secret goes to the last @, whatever unencoded signs it holds; with a ? in it nobody can say where it ends."""
QUERY_VALUE = re.compile(r"(?s)([?&;](?!(?:sslmode|ssl)=)[^=&;?/]*=)(?:(?![&;][\w%.-]+=).)*")
SECRET_SETTING = re.compile(r"(?i)(\w*(?:password|passwd|pwd)\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;]+)")
SHORT_SECRET = 4
"""Characters of a secret that is replaced only where it stands as a word, since it is a part of many words."""


def without_secret(address: object) -> str:
    """A server's address, or what should have been one, without the password in it and the values of its query."""
    text = str(address)
    if found := USER_AND_SECRET.match(text):
        text = f"{found[1]}:{MASK}" + ("" if "?" in found[0] else f"@{text[found.end() :]}")
    return SECRET_SETTING.sub(rf"\g<1>{MASK}", QUERY_VALUE.sub(rf"\g<1>{MASK}", text))


def masked(text: str, secret: str | None) -> str:
    """A text of another program's without a secret that it may quote, as it is or percent-encoded."""
    if not secret:
        return text
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), repr(secret)[1:-1]}
    for form in sorted(forms, key=len, reverse=True):
        word = re.escape(form) if len(form) >= SHORT_SECRET else rf"(?<!\w){re.escape(form)}(?!\w)"
        text = re.sub(word, MASK, text, flags=re.IGNORECASE if "%" in form else 0)
    return text
