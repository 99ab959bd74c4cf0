"""`/docs`: the end points, their parameters and an example each, as one page without scripts or remote content."""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from threading import Lock
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

DESCRIBING = Lock()
router = APIRouter(include_in_schema=False)
DOCS_STYLE = """
:root { color-scheme: light dark; font: 16px/1.55 system-ui, sans-serif; }
body { max-width: 62rem; margin: 0 auto; padding: 2rem 1.2rem 5rem; background: light-dark(#fbfaf7, #17181a);
  color: light-dark(#22201d, #e9e6e0); }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin: 2.6rem 0 .4rem; overflow-wrap: anywhere; }
code, pre { font: .86rem/1.5 ui-monospace, monospace; }
pre { padding: .8rem 1rem; overflow-x: auto; background: light-dark(#f3f1ec, #1f2124); border-radius: 8px; }
b { color: light-dark(#0b6b5e, #5cc9b7); font-size: .82rem; margin-right: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-top: 1px solid light-dark(#e1ddd4, #303337); padding: .3rem .8rem .3rem 0; vertical-align: top; }
td:first-child { white-space: nowrap; } summary { cursor: pointer; padding: .3rem 0; }
a { color: inherit; } nav a { margin-right: 1rem; } @media (max-width: 600px) { td { display: block; } }
"""
EXAMPLE_MESSAGES = '"messages": [{"role": "user", "content": "Why is the sky blue?"}]'
BODY_EXAMPLES = {
    "/v1/completions": '{"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}',
    "/v1/chat/completions": f'{{{EXAMPLE_MESSAGES}, "temperature": 0}}',
    "/v1/responses": '{"input": "Why is the sky blue?", "temperature": 0}',
    "/v1/messages": f'{{{EXAMPLE_MESSAGES}, "max_tokens": 100, "temperature": 0}}',
    "/v1/messages/count_tokens": f"{{{EXAMPLE_MESSAGES}}}",
    "/v1/embeddings": '{"input": "The sky is blue.", "pooling": "mean"}',
    "/v1/rerank": '{"query": "What colour is the sky?", "documents": ["The sky is blue.", "Bread is baked."]}',
    "/v1/score": '{"text_1": "What colour is the sky?", "text_2": ["The sky is blue.", "Bread is baked."]}',
    "/infill": '{"input_prefix": "def add(a, b):\\n    ", "input_suffix": "\\n", "n_predict": 16}',
    "/tokenize": '{"prompt": "Once upon a time"}',
    "/detokenize": '{"tokens": [10, 11]}',
}


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
def openapi_document(request: Request) -> Response:
    """The description for machines. It is made once, which takes a while: in a thread, so that nobody waits."""
    return Response(orjson.dumps(described_once(request.app)), media_type="application/json")


def described_once(app: FastAPI) -> dict[str, Any]:
    """What it serves. Many may ask at the same time before it is made."""
    with DESCRIBING:
        return app.openapi()


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs(request: Request) -> Response:
    """The page; built for each request, as it is small and seldom requested."""
    described = described_once(request.app)
    body = "".join(page(described, str(request.base_url).rstrip("/")))
    style = b64encode(sha256(DOCS_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


def page(document: dict[str, Any], base: str) -> Iterator[str]:
    yield "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield f"<title>Paceline: API</title><style>{DOCS_STYLE}</style><h1>Paceline's API</h1>"
    yield "<p>OpenAI's and Anthropic's protocols: their clients work as they are. An answer does not depend on who "
    yield "drafts, or on what else is being served.</p>"
    yield "<nav><a href='/'>Playground</a><a href='/openapi.json'>openapi.json</a><a href='/metrics'>Metrics</a></nav>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from end_point(document, base, path, method.upper(), operation)
    yield "</html>"


def end_point(document: dict[str, Any], base: str, path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><b>{method}</b><code>{escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    if path in BODY_EXAMPLES:
        url, body = escape(base + path), escape(BODY_EXAMPLES[path])
        yield f"<pre>curl {url} -H 'Content-Type: application/json' -d '{body}'</pre>"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    if not name:
        return
    schema = document["components"]["schemas"][name]
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' *' if field in schema.get('required', ()) else ''}</td>"
        f"<td>{escape(about.get('description', ''))}</td></tr>"
        for field, about in schema["properties"].items()
    )
    yield f"<details open><summary>Parameters (* must be given)</summary><table>{rows}</table></details>"
