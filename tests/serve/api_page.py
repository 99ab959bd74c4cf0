"""The table of parameters in docs/server.md. `python -m tests.serve.api_page` prints it."""

from paceline.serve.other_clients import UNKNOWN_PARAMETERS, UNSUPPORTED
from paceline.serve.protocol import ChatRequest, CompletionRequest


def table() -> str:
    """Every parameter of the two end points, what its value must be, and which of them knows it."""
    both, rows = CompletionRequest.model_fields | ChatRequest.model_fields, []
    for name in both:
        only = [r for r in (CompletionRequest, ChatRequest) if name in r.model_fields]
        where = {CompletionRequest: "completions", ChatRequest: "chat"}[only[0]] if len(only) == 1 else "both"
        texts = [f"{r.model_fields[name].description}".replace("|", "\\|") for r in only]
        rows.append(f"| `{name}` | {where} | {'; in chat '.join(dict.fromkeys(texts))} |")
    return "\n".join(["| parameter | end point | value |", "|---|---|---|", *rows])


def refused() -> str:
    """Parameters of other servers that are refused, and what to do."""
    rows = [f"| `{name}` | {reason} |" for name, reason in {**UNSUPPORTED, **UNKNOWN_PARAMETERS}.items()]
    return "\n".join(["| refused | because, or instead |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table(), refused(), sep="\n\n")
