"""Numbers for Prometheus; where vLLM has the same one, under its name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from runtime.data.results import Result
from runtime.observe.stats import RuntimeStats
from runtime.server.histogram import Histogram

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("Arrival to first token", _SECONDS),
    "vllm:inter_token_latency_seconds": ("Gaps between tokens", _SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Mean gap of a request", _SECONDS),
    "vllm:e2e_request_latency_seconds": ("Arrival to last token", _SECONDS),
    "vllm:request_queue_time_seconds": ("Arrival to first scheduled", _SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request", _TOKENS),
    "vllm:request_generation_tokens": ("Generated tokens of a sample", _TOKENS),
}


class Metrics:
    """What the server counts itself; the rest is read from the runtime at each scrape."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._ends: dict[str, int] = {}
        self._answers: dict[str, int] = {}

    def ended(self, result: Result) -> None:
        """A request has ended, well or not."""
        samples, at = result.outputs, self._histograms
        for sample in samples:
            self._ends[sample.finish_reason] = self._ends.get(sample.finish_reason, 0) + 1
            at["vllm:inter_token_latency_seconds"].add(sample.timing.itl_s)
        times = [sample.timing for sample in samples]
        at["vllm:time_to_first_token_seconds"].add(t.ttft_s for t in times)
        at["vllm:request_time_per_output_token_seconds"].add(t.tpot_s for t in times)
        at["vllm:e2e_request_latency_seconds"].add(t.e2e_s for t in times)
        at["vllm:request_queue_time_seconds"].add(t.queue_s for t in times)
        at["vllm:request_prompt_tokens"].add([float(result.num_prompt_tokens)])
        at["vllm:request_generation_tokens"].add(float(len(s.token_ids)) for s in samples)

    def answered(self, status: int) -> None:
        """A response has begun."""
        self._answers[str(status)] = self._answers.get(str(status), 0) + 1

    def exposition(self, stats: RuntimeStats) -> bytes:
        """Everything, in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(_Fixed([*self._of_runtime(stats), *self._of_server()]))
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def _of_runtime(self, stats: RuntimeStats) -> list[Metric]:
        used = stats.blocks_used / stats.num_blocks if stats.num_blocks else 0.0
        gauge, counter, split = self._gauge, self._counter, self._split
        graphs = stats.graphs
        return [
            gauge("vllm:num_requests_running", "Samples that run", stats.num_running),
            gauge("vllm:num_requests_waiting", "Samples that wait", stats.num_waiting),
            gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", used),
            counter("vllm:prefix_cache_queries", "Prompt tokens looked up", stats.prompt_tokens),
            counter("vllm:prefix_cache_hits", "Of those, found", stats.cached_tokens),
            counter("vllm:num_preemptions", "Preemptions", stats.preemptions),
            counter("vllm:prompt_tokens", "Prompt tokens", stats.prompt_tokens),
            counter("vllm:generation_tokens", "Generated tokens", stats.output_tokens),
            split("stepgraph:steps", "Steps by kind of graph", "kind", stats.step_kinds),
            split("stepgraph:bucket_steps", "Steps by bucket", "bucket", graphs.bucket_steps),
            split("stepgraph:eager_steps", "Steps without graph", "reason", graphs.eager_reasons),
            counter("stepgraph:mixed_steps", "Steps with prompt and decode", stats.mixed_steps),
            counter("stepgraph:failed_steps", "Steps that failed", stats.failed_steps),
            counter("stepgraph:scheduled_tokens", "Tokens run", stats.scheduled_tokens),
            counter("stepgraph:padded_tokens", "Tokens run, with padding", stats.padded_tokens),
            counter("stepgraph:recomputed_tokens", "Run again", stats.recomputed_tokens),
            counter("stepgraph:step_seconds", "Time inside steps", stats.elapsed_s),
        ]

    def _of_server(self) -> list[Metric]:
        found: list[Metric] = [
            self._split("vllm:request_success", "Samples by end", "finished_reason", self._ends),
            self._split("stepgraph:http_responses", "By status", "status", self._answers),
        ]
        for name, (text, _) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=[*self._labels])
            buckets, total = self._histograms[name].buckets()
            family.add_metric([*self._labels.values()], buckets, total)
            found.append(family)
        return found

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family

    def _split(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family


class _Fixed:
    """A collector of what was gathered already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
