"""OpenTelemetry: a span per HTTP request, continued from the caller's `traceparent`, and one per sample below it."""

import time
from typing import TYPE_CHECKING, Any

from paceline.core.errors import InputError
from paceline.engine.door import Trip
from paceline.serve.calls import HttpCall
from paceline.serve.logs import QUIET

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

UNTRACED = ("/", *QUIET)


def exporter(endpoint: str) -> "SpanExporter":
    """OTLP over HTTP. InputError where the packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise InputError("otel_endpoint is set, but OpenTelemetry is missing; install paceline[otel].") from None
    return OTLPSpanExporter(endpoint=endpoint)


class Tracer:
    """Spans of one server, sent by `exporter` in the background."""

    def __init__(self, exporter: "SpanExporter", model: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.model = model
        self._provider = TracerProvider(resource=Resource.create({"service.name": "paceline"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paceline")

    def begin(self, call: HttpCall, headers: dict[str, str]) -> Any:
        """The span of a call, or None for what is polled."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        if call.path in UNTRACED:
            return None
        attributes = {"http.request.method": call.method, "url.path": call.path, "paceline.request_id": call.id}
        return self._tracer.start_span(
            f"{call.method} {call.path}", extract(headers), SpanKind.SERVER, attributes=attributes
        )

    def end(self, call: HttpCall) -> None:
        """Close the call's span, with one below it for each sample."""
        if call.span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        for trip in call.trips:
            self._sample(call, trip)
        if call.trips:
            call.span.set_attribute("gen_ai.request.model", self.model)
            call.span.set_attribute("paceline.tau", call.stats.tau)
        call.span.set_attribute("http.response.status_code", 499 if call.gone else call.status or 0)
        if call.status is None or call.status >= 500:
            call.span.set_status(Status(StatusCode.ERROR))
        call.span.end()

    def _sample(self, call: HttpCall, trip: Trip) -> None:
        """Its times are monotonic; a span wants those of the wall, so both clocks are read now."""
        from opentelemetry.trace import set_span_in_context

        wall, mono, request = time.time_ns(), time.monotonic(), trip.request

        def at(moment: float) -> int:
            return wall - int((mono - moment) * 1e9)

        attributes: dict[str, Any] = {
            "gen_ai.usage.input_tokens": len(request.prompt),
            "gen_ai.usage.output_tokens": len(request.output),
            "gen_ai.response.finish_reasons": [request.finish or "error"],
            "paceline.drafted": request.stats.drafted,
            "paceline.accepted": request.stats.accepted,
            "paceline.target_passes": request.stats.passes,
            "paceline.tau": request.stats.tau,
        }
        span = self._tracer.start_span(
            "generate", set_span_in_context(call.span), attributes=attributes, start_time=at(trip.arrived)
        )
        if trip.first is not None:
            span.add_event("first token", timestamp=at(trip.first))
        span.end(at(trip.ended if trip.ended is not None else mono))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
