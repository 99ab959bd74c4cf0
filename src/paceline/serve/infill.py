"""POST /infill: llama-server's end point for what stands between two texts."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from paceline.core.params import SamplingParams
from paceline.engine.outputs import Completion
from paceline.serve.body import JsonRoute, size
from paceline.serve.errors import ApiError
from paceline.serve.fim import filled, fim_of
from paceline.serve.generation import Generation
from paceline.serve.protocol import Sampling
from paceline.serve.responses import ERRORS, STREAM_FORM
from paceline.serve.server import Here, Server
from paceline.serve.sse import event, respond
from paceline.serve.structure import given_grammar
from paceline.serve.wire import Label, Wire
from paceline.serve.wishes import sampling_params, seeds

router = APIRouter(route_class=JsonRoute)
MOST_FILES = 256
"""Other files of one request."""


class FileText(Wire):
    text: str
    filename: Label | None = None


class InfillRequest(Sampling):
    input_prefix: str = Field("", description="a text: what stands before the gap")
    input_suffix: str = Field("", description="a text: what stands behind the gap")
    prompt: str = Field("", description="a text: what is already written in the gap; it follows input_prefix")
    input_extra: list[FileText] | None = Field(
        None, max_length=MOST_FILES, description=f'a list of {{"filename": ..., "text": ...}}, {MOST_FILES} at most'
    )

    @model_validator(mode="before")
    @classmethod
    def _unlimited(cls, data: Any) -> Any:
        """n_predict -1 means no limit, as not given."""
        if isinstance(data, dict) and type(data.get("n_predict")) is int and data["n_predict"] == -1:
            return {name: value for name, value in data.items() if name != "n_predict"}
        return data

    def wishes(self) -> SamplingParams:
        if self.n not in (None, 1):
            raise ApiError(400, f"n is {self.n}, but /infill gives one text; ask again for others.", param="n")
        return sampling_params(self, grammar=given_grammar(self))


@router.post("/infill", responses={200: STREAM_FORM, **ERRORS})
async def infill(body: InfillRequest, request: Request, host: Here) -> Response:
    """Fill in what stands between two texts, with a model that has tokens for it."""
    server = await host.of(body.model)
    fim = fim_of(server, "/infill")
    server.check_places(1)
    params = await server.ready(body.wishes, size(request), body.grammar is not None)
    others = [(each.filename or "", each.text) for each in body.input_extra or ()]
    ids = await filled(server, fim, [body.input_prefix + body.prompt], body.input_suffix, others)
    ends = (*params.stop_token_ids, *fim.ends)
    params = replace(params, seed=seeds(body, 1)[0], stop_token_ids=ends)
    generation = await Generation.start(server.llm, ids, [params], whole=not body.stream)
    return await respond(request, InfillAnswer(server, generation), bool(body.stream), generation.close, b"")


@dataclass
class InfillAnswer:
    """Turns the news of a generation into llama-server's answer."""

    server: Server
    generation: Generation

    async def events(self) -> AsyncGenerator[bytes, None]:
        async for chunks in self.generation.news():
            for chunk in chunks:
                if chunk.done is None:
                    yield event({"content": chunk.text, "stop": False, "index": 0})
                else:
                    yield event({"content": chunk.text, **self.end(chunk.done)})

    async def whole(self) -> dict[str, Any]:
        text, done = "", None
        async for chunks in self.generation.news():
            text += "".join(chunk.text for chunk in chunks)
            done = next((chunk.done for chunk in chunks if chunk.done), done)
        assert done is not None
        return {"content": text, **self.end(done)}

    def end(self, done: Completion) -> dict[str, Any]:
        usage = self.generation.usage()
        return {
            "stop": True,
            "index": 0,
            "model": self.server.model,
            "seed": done.seed,
            "stop_type": "limit" if done.finish_reason == "length" else "eos",
            "truncated": False,
            "tokens_predicted": usage["completion_tokens"],
            "tokens_evaluated": usage["prompt_tokens"],
            "tokens_cached": usage["prompt_tokens_details"]["cached_tokens"],
        }
