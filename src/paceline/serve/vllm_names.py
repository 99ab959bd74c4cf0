"""Metrics under vLLM's names, for dashboards and autoscalers that know those."""

from collections.abc import Callable, Iterator
from time import time
from typing import TYPE_CHECKING

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.engine.totals import Snapshot

if TYPE_CHECKING:
    from paceline.serve.metrics import Metrics

MODEL_LABEL = "model_name"


class VllmNames(Collector):
    """Counts nothing of its own: it reads what `Metrics` has and the engine's snapshot."""

    def __init__(
        self, metrics: "Metrics", read: Callable[[], Snapshot], model: str,
        loras: Callable[[], tuple[int, list[str], list[str]]] | None = None,
    ) -> None:  # fmt: skip
        """`loras`: most adapters in memory, the names of those in use, and of those that are waited for."""
        self._metrics, self._read, self._model, self._loras = metrics, read, model, loras

    def collect(self) -> Iterator[Metric]:
        now, mine = self._read(), self._metrics
        speculation = now.speculation
        yield self._gauge("num_requests_running", now.running)
        yield self._gauge("num_requests_waiting", now.waiting)
        yield self._gauge("kv_cache_usage_perc", now.used / now.blocks)
        if now.block_size:
            yield self._cache(now)
        yield self._counter("prompt_tokens", now.totals.prompt)
        yield self._counter("generation_tokens", speculation.generated)
        yield self._counter("num_preemptions", now.totals.preemptions)
        yield self._counter("prefix_cache_queries", now.totals.prompt)
        yield self._counter("prefix_cache_hits", now.totals.cached)
        yield self._counter("spec_decode_num_drafts", speculation.passes)
        yield self._counter("spec_decode_num_draft_tokens", speculation.drafted)
        yield self._counter("spec_decode_num_accepted_tokens", speculation.accepted)
        yield self._by_position(speculation.kept)
        yield self._ends()
        if self._loras is not None:
            yield self._adapters(*self._loras())
        yield self._histogram("time_to_first_token_seconds", mine.ttft)
        yield self._histogram("request_time_per_output_token_seconds", mine.tpot)
        yield self._histogram("request_queue_time_seconds", mine.queue)
        yield self._histogram("e2e_request_latency_seconds", mine.latency)

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", f"As paceline_{name}.", labels=[MODEL_LABEL])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", "See docs/server.md.", labels=[MODEL_LABEL])
        family.add_metric([self._model], value)
        return family

    def _by_position(self, kept: list[int]) -> Metric:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        family = CounterMetricFamily(
            name, "Accepted drafted tokens, by depth from 0.", labels=[MODEL_LABEL, "position"]
        )
        for position, count in enumerate(kept):
            family.add_metric([self._model, str(position)], count)
        return family

    def _cache(self, now: Snapshot) -> Metric:
        labels = [MODEL_LABEL, "block_size", "num_gpu_blocks", "enable_prefix_caching"]
        family = GaugeMetricFamily("vllm:cache_config_info", "The K/V cache, in labels; the value is 1.", labels=labels)
        family.add_metric([self._model, str(now.block_size), str(now.blocks), str(now.prefix)], 1.0)
        return family

    def _adapters(self, most: int, running: list[str], awaited: list[str]) -> Metric:
        labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use; the value is a time.", labels=labels)
        family.add_metric([str(most), ",".join(running), ",".join(awaited)], time())
        return family

    def _ends(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Samples, by how they ended.", labels=[MODEL_LABEL, "finished_reason"]
        )
        for metric in self._metrics.finished.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    family.add_metric([self._model, sample.labels["finished_reason"]], sample.value)
        return family

    def _histogram(self, name: str, source: Histogram) -> Metric:
        """With the same buckets."""
        family = Metric(f"vllm:{name}", f"As {source._name}.", "histogram")
        for metric in source.collect():
            for sample in metric.samples:
                tail = sample.name.removeprefix(metric.name)
                family.add_sample(f"vllm:{name}{tail}", {**sample.labels, MODEL_LABEL: self._model}, sample.value)
        return family
