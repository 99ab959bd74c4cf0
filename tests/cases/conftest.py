"""The demo pair as a server, shared with the tests of serve/."""

from tests.serve.conftest import client, engine, llm, tools_client, tools_engine, tools_llm, tools_model, url

__all__ = ["client", "engine", "llm", "tools_client", "tools_engine", "tools_llm", "tools_model", "url"]
