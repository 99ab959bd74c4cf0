"""Prometheus metrics. Names follow the field's; `spec_decode_*` are counted per drafter and depth, so that every ratio
can be derived. The engine's counters are read from its snapshot when they are asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.draft import DRAFTERS
from paceline.engine.door import Trip
from paceline.engine.totals import Snapshot, Totals, summed
from paceline.reason.level import Level
from paceline.serve.calls import HttpCall
from paceline.serve.server import ModelFigures

disable_created_metrics()  # type: ignore[no-untyped-call]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRIC_PATHS = (
    "/", "/docs", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat", "/api/generate", "/api/embed", "/api/tags",
    "/v1/embeddings", "/v1/rerank", "/v1/score", "/infill", "/v1/models", "/tokenize", "/detokenize",
    "/health", "/ready", "/version", "/metrics", "/stats", "/stats/history",
)  # fmt: skip
"""Values of the label `path`; every other path is `other`, so that no client can make time series."""
LABELS = frozenset(DRAFTERS.arms())
"""Combinations that have a label of their own: those that `auto` chooses from."""
T = TypeVar("T")
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
LATENCY = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class Metrics:
    """All metrics of one server. For the event loop."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        registry.register(EngineCollector(read))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"paceline_{name}", text, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_{name}", text, labels, registry=registry)

        self.ttft = histogram("time_to_first_token_seconds", "From submission to the first token.", TTFT)
        self.tpot = histogram("time_per_output_token_seconds", "Mean per token after the first, of a sample.", TPOT)
        self.queue = histogram("request_queue_time_seconds", "From submission to the first computed rows.", TTFT)
        self.latency = histogram("e2e_request_latency_seconds", "From submission to the last token.", LATENCY)
        self.finished = counter("request_success_total", "Samples, by how they ended.", "finished_reason")
        self.http = counter("http_requests_total", "HTTP requests, by path and status.", "path", "status")
        self.gone = counter("client_disconnects_total", "Clients that left before their answer was complete.")

    def seen(self, trip: Trip) -> None:
        """A sample has ended."""
        self.finished.labels(trip.request.finish or "error").inc()
        if trip.ended is None:
            return
        self.latency.observe(trip.ended - trip.arrived)
        if trip.started is not None:
            self.queue.observe(trip.started - trip.arrived)
        if trip.first is not None:
            self.ttft.observe(trip.first - trip.arrived)
            if len(trip.request.output) > 1:
                self.tpot.observe((trip.ended - trip.first) / (len(trip.request.output) - 1))

    def answered(self, call: HttpCall) -> None:
        """An HTTP request is over."""
        path = call.path if call.path in METRIC_PATHS else "other"
        self.http.labels(path, str(499 if call.gone else call.status)).inc()
        if call.gone:
            self.gone.inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class AboveCollector(Collector):
    """What policies above tokens did, as far as their answers have ended."""

    def __init__(self, read: Callable[[], Mapping[str, Level]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        levels = dict(self._read())
        for name, text in POLICY_COUNTS.items():
            family = CounterMetricFamily(f"paceline_above_{name}", text, labels=["policy"])
            for policy, level in levels.items():
                family.add_metric([policy], getattr(level, name))
            yield family
        saved = GaugeMetricFamily(
            "paceline_above_saved_seconds",
            "Seconds that accepted proposals saved the expensive model, less those of proposing and judging.",
            labels=["policy"],
        )
        for policy, level in levels.items():
            saved.add_metric([policy], level.saved_s)
        yield saved


POLICY_COUNTS = {
    "proposed": "Steps, paragraphs, branches or retrievals that were proposed, by policy.",
    "accepted": "Those of them that stand.",
}


class ModelCollector(Collector):
    """Figures of each model that is served, with the label `model`."""

    def __init__(self, read: Callable[[], Mapping[str, ModelFigures]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        figures = dict(self._read())
        for name, (text, value) in MODEL_GAUGES.items():
            gauge = GaugeMetricFamily(f"paceline_model_{name}", text, labels=["model"])
            for model, its in figures.items():
                gauge.add_metric([model], value(its))
            yield gauge
        for name, (text, value) in MODEL_COUNTERS.items():
            counter = CounterMetricFamily(f"paceline_model_{name}", text, labels=["model"])
            for model, its in figures.items():
                counter.add_metric([model], value(its))
            yield counter


MODEL_GAUGES: dict[str, tuple[str, Callable[[ModelFigures], float]]] = {
    "loaded": ("1 while the model is loaded.", lambda it: float(it.loaded)),
    "requests_running": ("Samples of the model being decoded.", lambda it: it.running),
    "requests_waiting": ("Samples of the model that wait for a place.", lambda it: it.waiting),
}
MODEL_COUNTERS: dict[str, tuple[str, Callable[[ModelFigures], float]]] = {
    "loads": ("How often the model was loaded.", lambda it: it.loads),
    "unloads": ("How often the model was unloaded.", lambda it: it.unloads),
    "prompt_tokens": ("Prompt tokens of the model's admitted samples.", lambda it: it.totals.prompt),
    "generation_tokens": ("Tokens that the model generated.", lambda it: generated(it.totals)),
}


def generated(totals: Totals) -> int:
    return summed([*totals.drafters.values()]).generated if totals.drafters else 0


class EngineCollector(Collector):
    """The engine's own figures, as of its latest snapshot."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        speculation = now.speculation
        yield _gauge("num_requests_running", "Samples being decoded.", now.running)
        yield _gauge("num_requests_waiting", "Samples that wait for a place.", now.waiting)
        yield _gauge(
            "kv_cache_usage_perc", "Share of the K/V blocks that samples hold; 1 is all.", now.used / now.blocks
        )
        yield _gauge("spec_decode_tau", "Tokens committed per target pass since the start.", speculation.tau)
        yield _gauge(
            "speculation_saved_seconds_total",
            "Seconds that speculation has saved against plain decoding since the start; below 0: lost.",
            now.totals.saved_s,
        )
        yield _counter("step_seconds", "Seconds of all steps.", now.totals.busy_s)
        yield _gauge(
            "speculation_stopped",
            "1 while speculation has lost more time than it may, so that nobody drafts; 0 otherwise.",
            float(now.totals.stopped),
        )
        yield _counter("prompt_tokens", "Prompt tokens of admitted samples.", now.totals.prompt)
        yield _counter("prefix_cache_hit_tokens", "Those found in the prefix cache.", now.totals.cached)
        yield _counter("generation_tokens", "Generated tokens.", speculation.generated)
        yield _counter("preemptions", "Samples that lost their K/V to others for a while.", now.totals.preemptions)
        yield _counter("expert_loads", "Reads of an expert of a mixture, once a pass.", now.expert_loads)
        errors = CounterMetricFamily("paceline_drafter_errors", "Failures of a drafter.", labels=["drafter"])
        passes = CounterMetricFamily(
            "paceline_target_passes", "Passes that committed a sample's tokens; n samples in a pass count n.",
            labels=["drafter"],
        )  # fmt: skip
        for name, count in grouped(now.totals.drafter_errors).items():
            errors.add_metric([name], sum(count))
        for name, each in grouped(now.totals.drafters).items():
            passes.add_metric([name], sum(stats.passes for stats in each))
        yield from (errors, passes, *_depths(now))


def grouped(by_drafter: Mapping[str, T]) -> dict[str, list[T]]:
    """Figures by label: a drafter's name, or what kind of combination it is. Clients make names of combinations, and
    must not make time series."""
    groups: dict[str, list[T]] = {}
    for name, value in by_drafter.items():
        known = name in LABELS or not {"+", "|"} & set(name)
        groups.setdefault(name if known else "a|b" if "|" in name else "a+b", []).append(value)
    return groups


def _depths(now: Snapshot) -> Iterator[Metric]:
    for field, text in (("offered", "Drafted tokens judged"), ("kept", "Drafted tokens accepted")):
        family = CounterMetricFamily(
            f"paceline_spec_decode_{field}_tokens", f"{text}, by drafter and depth.", labels=["drafter", "depth"]
        )
        for name, each in grouped(now.totals.drafters).items():
            for depth, count in enumerate(getattr(summed(each), field), 1):
                family.add_metric([name, str(depth)], count)
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"paceline_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"paceline_{name}", text, value)
