"""Spans, collected in memory instead of sent."""

import sys

import httpx2
import pytest

from paceline import AsyncLLM
from paceline.core.errors import InputError
from paceline.serve.app import create_app
from paceline.serve.settings import Settings
from paceline.serve.tracing import Tracer, exporter

sdk = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_span_per_request_and_sample(engine: AsyncLLM) -> None:
    memory = sdk.InMemorySpanExporter()
    app = create_app(engine, Settings())
    tracer = app.state.operation.tracer = Tracer(memory, "demo")
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"prompt": "Tom has 3 apples.", "max_tokens": 5, "n": 2, "ignore_eos": True}
        response = await client.post("/v1/completions", json=body, headers={"traceparent": PARENT})
        await client.get("/ready")
    assert response.status_code == 200
    tracer.close()
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert set(spans) == {"POST /v1/completions", "generate"} and len(memory.get_finished_spans()) == 3
    call, sample = spans["POST /v1/completions"], spans["generate"]
    assert f"{call.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{call.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sample.parent.span_id == call.context.span_id
    assert call.attributes["http.response.status_code"] == 200 and call.attributes["gen_ai.request.model"] == "demo"
    assert sample.attributes["gen_ai.usage.output_tokens"] == 5
    assert sample.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert sample.start_time <= sample.events[0].timestamp <= sample.end_time


def test_without_the_packages_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InputError, match=r"paceline\[otel\]"):
        exporter("http://localhost:4318/v1/traces")
