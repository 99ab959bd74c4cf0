"""What people's clients do against a running server, each for real: `python tests/clients.py http://127.0.0.1:8000`.

A client that is not installed is named and left out. Rows: connect, chat, stream, tools, strict tools, embeddings.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8000"
os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{URL}/v1", ANTHROPIC_API_KEY="none", LITELLM_LOG="ERROR")
ASK = "What is the weather in Paris? Call get_weather."
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
               "additionalProperties": False}  # fmt: skip
SAY = [{"role": "user", "content": "Say hello."}]


def function(strict: bool) -> Any:
    inner = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
    return {"type": "function", "function": {**inner, **({"strict": True} if strict else {})}}


def openai_python() -> dict[str, Callable[[], Any]]:
    from openai import OpenAI

    client = OpenAI()
    model = client.models.list().data[0].id
    make: Any = client.chat.completions.create

    def tools(strict: bool) -> Any:
        forced = make(model=model, messages=[{"role": "user", "content": ASK}], tools=[function(strict)],
                      tool_choice="required", max_tokens=60)  # fmt: skip
        json.loads(forced.choices[0].message.tool_calls[0].function.arguments)["city"]
        return make(model=model, messages=[{"role": "user", "content": ASK}], tools=[function(strict)],
                    parallel_tool_calls=False, max_tokens=60)  # fmt: skip

    return {
        "chat": lambda: make(model=model, messages=SAY, max_tokens=16).choices[0].message.content,
        "stream": lambda: list(make(model=model, messages=SAY, max_tokens=16, stream=True))[-1],
        "tools": lambda: tools(False),
        "strict tools": lambda: tools(True),
        "embeddings": lambda: client.embeddings.create(model=model, input=["a", "b"]).data[1].embedding[0],
        "responses": lambda: client.responses.create(model=model, input="Say hello.", max_output_tokens=16).output_text,
    }


def anthropic_python() -> dict[str, Callable[[], Any]]:
    from anthropic import Anthropic

    client: Any = Anthropic(base_url=URL)
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
    asked = {"model": name(), "max_tokens": 60, "messages": [{"role": "user", "content": ASK}]}

    def stream() -> Any:
        with client.messages.stream(model=name(), max_tokens=16, messages=SAY) as events:
            return events.get_final_text()

    def forced(**more: Any) -> Any:
        made = client.messages.create(**asked, tools=[{**tool, **more}], tool_choice={"type": "any"})
        return next(b for b in made.content if b.type == "tool_use").input["city"]

    return {
        "chat": lambda: client.messages.create(model=name(), max_tokens=16, messages=SAY).content[0].text,
        "stream": stream,
        "tools": forced,
        "strict tools": lambda: (
            forced(strict=True),
            client.messages.create(**asked, tools=[{**tool, "strict": True}],
                                   tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
        ),
    }  # fmt: skip


def langchain() -> dict[str, Callable[[], Any]]:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    model: Any = ChatOpenAI(model=name(), max_tokens=60)
    return {
        "chat": lambda: model.invoke("Say hello.").content,
        "stream": lambda: [piece.content for piece in model.stream("Say hello.")],
        "tools": lambda: model.bind_tools([get_weather], tool_choice="required").invoke(ASK).tool_calls[0],
        "strict tools": lambda: (
            model.bind_tools([get_weather], strict=True, parallel_tool_calls=False).invoke(ASK),
            model.bind_tools([get_weather], strict=True, tool_choice="required").invoke(ASK).tool_calls[0],
        ),
        "embeddings": lambda: OpenAIEmbeddings(model=name(), check_embedding_ctx_length=False).embed_query("a")[0],
    }


def llama_index() -> dict[str, Callable[[], Any]]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    llm: Any = OpenAILike(model=name(), api_base=f"{URL}/v1", api_key="none", is_chat_model=True, max_tokens=60,
                          is_function_calling_model=True)  # fmt: skip
    tools = [FunctionTool.from_defaults(get_weather)]
    return {
        "chat": lambda: llm.chat([ChatMessage(role="user", content="Say hello.")]).message.content,
        "stream": lambda: list(llm.stream_chat([ChatMessage(role="user", content="Say hello.")]))[-1],
        "tools": lambda: llm.chat_with_tools(tools, user_msg=ASK, tool_required=True),
        "strict tools": lambda: llm.chat_with_tools(tools, user_msg=ASK, strict=True, allow_parallel_tool_calls=False),
        "embeddings": lambda: OpenAILikeEmbedding(
            model_name=name(), api_base=f"{URL}/v1", api_key="none"
        ).get_text_embedding("a")[0],
    }


def with_instructor() -> dict[str, Callable[[], Any]]:
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class City(BaseModel):
        city: str

    def asked(mode: Any) -> Any:
        client: Any = instructor.from_openai(OpenAI(), mode=mode)
        return client.chat.completions.create(
            model=name(),
            response_model=City,
            max_tokens=60,
            max_retries=1,
            messages=[{"role": "user", "content": "Paris"}],
        ).city

    return {
        "chat": lambda: asked(instructor.Mode.JSON_SCHEMA),
        "tools": lambda: asked(instructor.Mode.TOOLS),
        "strict tools": lambda: asked(instructor.Mode.TOOLS_STRICT),
    }


def with_litellm() -> dict[str, Callable[[], Any]]:
    import litellm

    where: Any = {"model": f"openai/{name()}", "api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 60}
    ask: Any = [{"role": "user", "content": ASK}]
    single: Any = {"parallel_tool_calls": False}
    return {
        "chat": lambda: litellm.completion(messages=SAY, **where).choices[0].message.content,
        "stream": lambda: list(litellm.completion(messages=SAY, stream=True, **where))[-1],
        "tools": lambda: litellm.completion(messages=ask, tools=[function(False)], tool_choice="required", **where)
        .choices[0].message.tool_calls[0],
        "strict tools": lambda: litellm.completion(messages=ask, tools=[function(True)], **single, **where),
        "embeddings": lambda: litellm.embedding(
            model=f"openai/{name()}", api_base=f"{URL}/v1", api_key="none", input=["a"]
        ).data[0]["embedding"][0],
    }  # fmt: skip


def with_ollama() -> dict[str, Callable[[], Any]]:
    from ollama import Client

    client: Any = Client(host=URL)
    options = {"num_predict": 60, "temperature": 0}
    return {
        "connect": lambda: client.list().models[0].model,
        "chat": lambda: client.chat(name(), SAY, options=options).message.content,
        "stream": lambda: list(client.generate(name(), "Say hello.", stream=True, options=options))[-1].done_reason,
        "tools": lambda: client.chat(
            name(), [{"role": "user", "content": ASK}], tools=[function(False)], options=options
        ),
        "embeddings": lambda: client.embed(name(), ["a", "b"]).embeddings[1][0],
        "show": lambda: client.show(name()).capabilities,
    }


def llm_tool() -> dict[str, Callable[[], Any]]:
    command = Path(sys.executable).with_name("llm")
    if not command.exists():
        raise ImportError("llm")
    home = tempfile.mkdtemp()
    Path(home, "extra-openai-models.yaml").write_text(
        f"- model_id: paceline\n  model_name: {name()}\n  api_base: {URL}/v1\n  api_key_name: none\n"
    )

    def run(*more: str) -> Any:
        words = [str(command), "-m", "paceline", "--key", "none", "-o", "max_tokens", "16", *more, "Say hello."]
        done = subprocess.run(
            words, env={**os.environ, "LLM_USER_PATH": home}, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        return done.stdout

    return {"chat": lambda: run("--no-stream"), "stream": run}


def node(package: str, code: str) -> Any:
    folder = os.environ.get("NODE_CLIENTS", ".")
    if shutil.which("node") is None or not Path(folder, "node_modules", package).is_dir():
        raise ImportError(package)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-600:]
    return done.stdout


def openai_npm() -> dict[str, Callable[[], Any]]:
    head = (
        f'import OpenAI from "openai"; const c = new OpenAI({{baseURL: "{URL}/v1", apiKey: "none"}});'
        f'const m = "{name()}"; const say = [{{role: "user", content: "Say hello."}}];'
    )
    tool = json.dumps([function(True)])
    node("openai", "")
    return {
        "chat": lambda: node("openai", head + "console.log((await c.chat.completions.create({model: m, messages: say, "
                             "max_tokens: 16})).choices[0].message.content)"),
        "stream": lambda: node("openai", head + "for await (const p of await c.chat.completions.create({model: m, "
                               "messages: say, max_tokens: 16, stream: true})) console.log(p.choices.length)"),
        "strict tools": lambda: node("openai", head + f"console.log(await c.chat.completions.create({{model: m, "
                                     f"messages: say, max_tokens: 30, tools: {tool}, parallel_tool_calls: false}}))"),
        "embeddings": lambda: node("openai", head + "console.log((await c.embeddings.create({model: m, input: 'a'}))"
                                   ".data[0].embedding.length)"),
    }  # fmt: skip


def anthropic_npm() -> dict[str, Callable[[], Any]]:
    head = f'import A from "@anthropic-ai/sdk"; const c = new A({{baseURL: "{URL}", apiKey: "none"}});'
    wish = f'{{model: "{name()}", max_tokens: 16, messages: [{{role: "user", content: "Say hello."}}]}}'
    node("@anthropic-ai/sdk", "")
    return {
        "chat": lambda: node(
            "@anthropic-ai/sdk", head + f"console.log((await c.messages.create({wish})).content[0].text)"
        ),
        "stream": lambda: node("@anthropic-ai/sdk", head + f"console.log(await c.messages.stream({wish}).finalText())"),
    }


JAVA = """import java.net.URI; import java.net.http.*;
class Ask { public static void main(String[] a) throws Exception {
  var body = "{\\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"Hello.\\"}],"
    + " \\"max_tokens\\": 16" + a[1] + "}";
  var ask = HttpRequest.newBuilder(URI.create(a[0] + "/v1/chat/completions")).header("Content-Type", "application/json")
    .POST(HttpRequest.BodyPublishers.ofString(body)).build();
  var got = HttpClient.newHttpClient().send(ask, HttpResponse.BodyHandlers.ofString());
  System.out.println(got.statusCode() + " " + got.body()); System.exit(got.statusCode() == 200 ? 0 : 1); } }
"""


def java() -> dict[str, Callable[[], Any]]:
    if shutil.which("java") is None or shutil.which("javac") is None:
        raise ImportError("java")
    file = Path(tempfile.mkdtemp(), "Ask.java")
    file.write_text(JAVA)

    def run(more: str) -> Any:
        done = subprocess.run(["java", str(file), URL, more], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, (done.stdout + done.stderr)[-600:]
        return done.stdout

    return {"chat": lambda: run(""), "stream": lambda: run(', "stream": true')}


def bodies() -> dict[str, Callable[[], Any]]:
    """What Codex and Claude Code send, as their open sources build it."""
    import urllib.request

    def post(path: str, body: Any) -> Any:
        head = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        with urllib.request.urlopen(
            urllib.request.Request(URL + path, json.dumps(body).encode(), head), timeout=100
        ) as got:
            return got.read()

    codex = {
        "model": name(), "instructions": "You are Codex.", "stream": True, "store": False, "tool_choice": "auto",
        "parallel_tool_calls": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "c0ffee",
        "reasoning": {"effort": "medium", "summary": "auto"}, "max_output_tokens": 16,
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Read-only."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {
                "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                "required": ["command"], "additionalProperties": False}},
            {"type": "web_search"},
            {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        ],
    }  # fmt: skip
    claude = {
        "model": name(), "max_tokens": 16, "stream": True, "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]}],
        "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": SCHEMA}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip
    return {
        "Codex": lambda: post("/v1/responses", codex),
        "Claude Code": lambda: post("/v1/messages?beta=true", claude),
    }


def with_aider() -> dict[str, Callable[[], Any]]:
    """A coding client, as its command, from $AIDER or the search path, in a repository of two files. Whether it can
    edit them is the model's doing: 1.5 billion parameters do, 0.5 keep no format of edits."""
    aider = os.environ.get("AIDER") or shutil.which("aider")
    if aider is None:
        raise ImportError("no command aider; its path may be given as AIDER")
    files = {"calc.py": "def add(a, b):\n    return a - b\n", "main.py": "from calc import add\n\nprint(add(2, 3))\n"}
    wish = "In calc.py, add must return the sum a + b. In main.py, print add(2, 3) and then add(4, 5)."

    def asked(folder: Path, *more: str) -> str:
        who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        own = {**os.environ, **who, "HOME": str(folder)}
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run(["git", *words], cwd=folder, env=own, check=True, timeout=60)
        done = subprocess.run(
            [aider, "--model", f"openai/{name()}", "--openai-api-base", f"{URL}/v1", "--edit-format", "whole",
             "--yes-always", "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--no-pretty",
             "--no-suggest-shell-commands", *more, "--message", wish, *files],
            cwd=folder, capture_output=True, text=True, timeout=900, check=True, env=own,
        )  # fmt: skip
        if "Tokens:" not in done.stdout:
            raise RuntimeError(done.stdout[-300:])
        return done.stdout

    def chat(*more: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return asked(Path(folder), *more)

    def edit() -> str:
        with tempfile.TemporaryDirectory() as folder:
            asked(Path(folder))
            words = [sys.executable, "main.py"]
            made = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60).stdout
            if made.split() != ["5", "9"]:
                raise RuntimeError(f"the model's edits print {made!r}")
            return made

    return {"chat": lambda: chat("--no-stream"), "stream": chat, "edit of two files": edit}


NAME: list[str] = []


def name() -> str:
    """The first model of the server."""
    if not NAME:
        import urllib.request

        with urllib.request.urlopen(f"{URL}/v1/models", timeout=30) as got:
            NAME.append(json.loads(got.read())["data"][0]["id"])
    return NAME[0]


CLIENTS: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
    "openai (Python)": openai_python, "openai (npm)": openai_npm, "anthropic (Python)": anthropic_python,
    "anthropic (npm)": anthropic_npm, "LangChain": langchain, "LlamaIndex": llama_index, "instructor": with_instructor,
    "litellm": with_litellm, "llm": llm_tool, "aider": with_aider, "Java HttpClient": java,
    "Ollama (Python)": with_ollama, "bodies of coding agents": bodies,
}  # fmt: skip


def main() -> int:
    failed = 0
    for client, steps in CLIENTS.items():
        try:
            todo = steps()
        except ImportError as error:
            print(f"{client:24} not installed ({error})")
            continue
        said = []
        for step, run in todo.items():
            try:
                run()
                said.append(f"{step} yes")
            except Exception as error:
                failed += 1
                said.append(f"{step} NO: {' '.join(str(error).split())[:300]}")
        print(f"{client:24} " + "; ".join(said), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 100))
