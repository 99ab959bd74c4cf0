"""`/`: the playground, one page whose own script and style are all that its policy lets run.

Its parts lie in `page/` and are put together when the server starts: there is no build step.
"""

import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

PAGE_FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("base", "markdown", "answer", "server", "settings", "chats", "talk", "dashboard", "main")
"""In this order; the last one starts the page."""
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Page:
    """The bytes of the page and the headers that go with them."""

    body: bytes
    headers: dict[str, str]


@cache
def page() -> Page:
    """Read once. `no-cache`: a browser may keep the page but asks each time whether it is still this one."""
    body = put_together().encode()
    return Page(
        body,
        {
            "Content-Type": "text/html; charset=utf-8",
            "Cache-Control": "no-cache",
            "ETag": f'"{sha256(body).hexdigest()[:32]}"',
            "Content-Security-Policy": policy(body),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        },
    )


def put_together() -> str:
    """The page with its style and its scripts inside."""
    style = (PAGE_FOLDER / "style.css").read_text(encoding="utf-8")
    script = "\n".join((PAGE_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    frame = (PAGE_FOLDER / "index.html").read_text(encoding="utf-8")
    return frame.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)


def policy(body: bytes) -> str:
    """Nothing but the inline script and style of `body`, by hash, and requests to this server. Trusted types make
    inserting text as HTML an error, whatever the script does."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {digest(body, b'script')}",
            f"style-src {digest(body, b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def digest(body: bytes, tag: bytes) -> str:
    """The policy's word for the one inline element `tag` of `body`."""
    (inside,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), body, re.DOTALL)
    return f"'sha256-{b64encode(sha256(inside).digest()).decode()}'"


@router.api_route("/", methods=["GET", "HEAD"])
def playground(request: Request) -> Response:
    """The page; 304 where the browser has it. Needs no API key: it holds nothing of the server's."""
    it = page()
    known = request.headers.get("if-none-match", "")
    if it.headers["ETag"] in known:
        return Response(status_code=304, headers=it.headers)
    return Response(it.body, headers=it.headers)
