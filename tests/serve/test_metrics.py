"""Metrics and /stats: exact counts, one definition of tau, bounded labels."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline import AsyncLLM
from paceline.serve.settings import Settings
from tests.patience import PATIENCE_S
from tests.serve.conftest import DEMO, running

WISH = {"prompt": "Tom has 3 apples and buys 4 more.", "max_tokens": 40, "seed": 1, "ignore_eos": True}
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def fresh() -> Iterator[httpx2.Client]:
    """A server whose engine has done nothing yet."""
    llm = AsyncLLM(**DEMO)
    with running(llm, Settings(queue_limit=5)) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client
    llm.close()


def scrape(client: httpx2.Client) -> Values:
    text = client.get("/metrics").text
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {(s.name.removeprefix("paceline_"), tuple(sorted(s.labels.items()))): s.value for s in samples}


def test_counts_are_those_of_the_answers(fresh: httpx2.Client) -> None:
    usages = []
    for drafter in ("model", "ngram", "none"):
        for n in (1, 3):
            body = {**WISH, "n": n, "speculation": {"drafter": drafter}}
            usages.append(fresh.post("/v1/completions", json=body).json()["usage"])
    values, stats = scrape(fresh), fresh.get("/stats").json()
    spec = [u["speculation"] for u in usages]
    generated = sum(u["completion_tokens"] for u in usages)
    assert generated == 3 * 4 * 40
    assert values["generation_tokens_total", ()] == generated == stats["tokens"]["generated"]
    prompt = usages[0]["prompt_tokens"]
    assert values["prompt_tokens_total", ()] == stats["tokens"]["prompt"] == prompt * 3 * 4  # of every sample
    passes = sum(s["target_passes"] for s in spec)
    assert sum(v for (name, _), v in values.items() if name == "target_passes_total") == passes == stats["passes"]
    for field, total in (("offered", "drafted"), ("kept", "accepted")):
        name = f"spec_decode_{field}_tokens_total"
        for drafter in ("model", "ngram"):
            mine = [s[field] for s in spec if s["drafter"] == drafter]
            depths = [sum(depth) for depth in zip(*(d + [0] * (64 - len(d)) for d in mine))]
            listed = stats["by_drafter"][drafter][field]
            assert len(listed) == max(map(len, mine))
            for depth, count in enumerate(listed, 1):
                assert values[name, (("depth", str(depth)), ("drafter", drafter))] == count == depths[depth - 1]
        assert stats["tokens"][total] == sum(s[total] for s in spec)
    assert values["spec_decode_tau", ()] == stats["tau"] == pytest.approx(generated / passes)
    assert stats["by_drafter"]["none"]["tau"] == 1.0
    assert values["speculation_saved_seconds_total", ()] == stats["saved_s"] != 0.0
    assert values["step_seconds_total", ()] == stats["busy_s"] > 0.0
    assert stats["stopped"] == {"all": False, "keys": 0} and values["speculation_stopped", ()] == 0.0


def test_histograms_and_endings(fresh: httpx2.Client) -> None:
    before = scrape(fresh)
    fresh.post("/v1/completions", json={**WISH, "n": 2})
    fresh.post("/v1/completions", json={**WISH, "temperature": -1})
    fresh.get("/any/path")
    after = scrape(fresh)

    def grown(name: str, **labels: str) -> float:
        key = name, tuple(sorted(labels.items()))
        return after.get(key, 0.0) - before.get(key, 0.0)

    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency", "request_queue_time"):
        assert grown(f"{name}_seconds_count") == 2, name
    assert 0 < grown("time_to_first_token_seconds_sum") <= grown("e2e_request_latency_seconds_sum")
    assert grown("request_queue_time_seconds_sum") <= grown("time_to_first_token_seconds_sum")
    assert grown("request_success_total", finished_reason="length") == 2
    assert grown("http_requests_total", path="/v1/completions", status="200") == 1
    assert grown("http_requests_total", path="/v1/completions", status="400") == 1
    assert grown("http_requests_total", path="other", status="404") == 1
    assert after["num_requests_running", ()] == after["num_requests_waiting", ()] == 0
    assert after["kv_cache_usage_perc", ()] == 0


def test_stats_has_what_the_dashboard_reads(fresh: httpx2.Client) -> None:
    stats: dict[str, Any] = fresh.get("/stats").json()
    assert set(stats) >= {
        "uptime_s", "model", "draft", "drafters", "verifiers", "running", "waiting", "max_requests", "queue_limit",
        "kv", "tokens", "passes", "tau", "offered", "kept", "preemptions", "drafter_errors", "by_drafter",
    }  # fmt: skip
    assert stats["queue_limit"] == 5 and stats["draft"] == "draft"
    assert set(stats["kv"]) == {"blocks", "used", "cached"} and stats["kv"]["cached"] > 0
    assert "ngram" in stats["drafters"] and "exact" in stats["verifiers"]
