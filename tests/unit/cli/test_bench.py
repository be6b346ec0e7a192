"""`stepgraph bench` over a tiny model of random weights."""

import json
import os
import signal

import pytest

from runtime.cli import bench, bench_flags
from runtime.cli.bench_report import in_digits
from runtime.workbench.arrivals import Arrivals
from tests.builders import write_config

KINDS = ("throughput", "latency", "serve")
SMALL = {
    "throughput": ("--num-prompts", 5, "--input-len", "4-9", "--output-len", "2-6"),
    "latency": ("--batch-size", 2, "--input-len", 5, "--output-len", 4, "--num-iters", 3),
    "serve": ("--num-prompts", 5, "--input-len", 6, "--output-len", 3, "--request-rate", 500),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_config(tmp_path_factory.mktemp("model") / "tiny", vocab_size=300)
    sets = ("model.format=dummy", "engine.threads=1", "cache.num_blocks=200", "cache.block_size=4")
    return ("--model", folder, *(word for key in sets for word in ("--set", key)))


@pytest.fixture
def unopened(monkeypatch):
    """A command that opens a model fails."""

    def fail(config):
        raise AssertionError("a model was opened")

    monkeypatch.setattr(bench, "open_runtime", fail)


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_and_the_file_say_the_same(call, model, tmp_path, kind):
    path, chart = tmp_path / "f.json", tmp_path / "f.svg"
    status, out, err = call("bench", kind, *model, *SMALL[kind], "--json", path, "--chart", chart)
    assert status == 0, err
    found = json.loads(path.read_text())
    count = 6 if kind == "latency" else 5
    assert (found["benchmark"], found["completed"], found["failed"]) == (kind, count, 0)
    assert found["config"]["engine"]["threads"] == 1
    assert found["engine"]["steps"] > 0
    assert f"{found['output_throughput']:,.1f}" in out
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert in_digits(found[f"p99_{name}_ms"]) in out
        assert name.upper() in out
    assert ("latencies" in found) == (kind == "latency")
    assert "ttfts" not in found
    assert chart.read_text().startswith("<?xml")


def test_lengths_and_warm_ups_are_those_asked_for(call, model, tmp_path):
    path = tmp_path / "f.json"
    args = ("--num-warmups", 3, "--json", path, "--save-detailed", "--metadata", "a=b", "c==")
    assert call("bench", "throughput", *model, *SMALL["throughput"], *args)[0] == 0
    found = json.loads(path.read_text())
    assert len(found["input_lens"]) == 5
    assert set(found["input_lens"]) <= set(range(4, 10))
    assert set(found["output_lens"]) <= set(range(2, 7))
    assert found["total_cached_tokens"] == 0
    assert (found["a"], found["c"], found["num_warmups"]) == ("b", "=", 3)
    assert [len(gaps) + 1 for gaps in found["itls"]] == found["output_lens"]


def test_the_same_seed_is_the_same_work(call, model, tmp_path):
    def lens(seed):
        args = (*SMALL["throughput"], "--seed", seed, "--save-detailed", "--json", "-")
        _, out, err = call("bench", "throughput", *model, *args)
        assert "output tokens/s" in err, "the table gives way"
        found = json.loads(out)
        return found["input_lens"], found["output_lens"]

    assert lens(1) == lens(1) != lens(2)


def test_shared_prefixes_are_found_in_the_cache(call, model):
    args = ("--dataset", "shared-prefix", "--num-prefixes", 1, "--prefix-len", 40)
    args = (*args, "--max-concurrency", 1, "--goodput", "ttft:100000", "tpot:100000")
    _, out, _ = call("bench", "serve", *model, *SMALL["serve"], *args, "--json", "-")
    found = json.loads(out)
    assert found["total_cached_tokens"] == 4 * 40
    assert found["request_goodput"] == found["request_throughput"]
    assert found["max_concurrent_requests"] == 1
    assert found["mean_queue_time_ms"] > 0


def test_a_jsonl_dataset_runs_whole(call, model, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"token_ids": [5, 6], "max_tokens": 2}\n{"token_ids": [7], "max_tokens": 3}\n')
    args = ("--dataset", "jsonl", "--dataset-path", path, "--ignore-eos", "--json", "-")
    found = json.loads(call("bench", "serve", *model, *args)[1])
    assert (found["num_prompts"], found["total_output_tokens"]) == (2, 5)
    status, _, err = call("bench", "serve", *model, *args, "--num-prompts", 3)
    assert status == 2
    assert "--num-prompts 3" in err
    assert "has 2 requests" in err


def test_a_trace_is_its_own_arrivals(call, model, tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 1000 + t, "input_length": 5, "output_length": 2} for t in (0, 40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    args = ("--dataset", "trace", "--dataset-path", path, "--time-scale", 0.5)
    found = json.loads(call("bench", "serve", *model, *args, "--save-detailed", "--json", "-")[1])
    assert found["arrivals"] == "trace"
    assert found["start_times"] == pytest.approx([0.0, 0.02])
    args = ("--arrivals", "trace", "--arrival-trace", path, "--num-prompts", 2, "--input-len", 5)
    found = json.loads(call("bench", "serve", *model, *args, "--save-detailed", "--json", "-")[1])
    assert found["start_times"] == pytest.approx([0.0, 0.04])


def test_in_a_folder_the_file_gets_a_name(call, model, tmp_path):
    args = ("--json", tmp_path, "--label", "a/b", "--max-concurrency", 3)
    assert call("bench", "serve", *model, *SMALL["serve"], *args)[0] == 0
    (name,) = os.listdir(tmp_path)
    assert name.startswith("a_b-500qps-concurrency3-tiny-2")
    assert name.endswith(".json")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--goodput", "itl:3"], "--goodput itl:3: names no metric"),
        (["--dataset", "jsonl"], "--dataset jsonl: needs --dataset-path"),
        (["--dataset", "trace", "--dataset-path", "/nowhere"], "/nowhere: cannot be read"),
        (["--dataset-path", "x"], "--dataset-path: goes with --dataset jsonl or trace, not random"),
        (["--prefix-len", 3], "--prefix-len: goes with --dataset shared-prefix, not random"),
        (["--ignore-eos"], "--ignore-eos: goes with --dataset jsonl"),
        (["--arrivals", "constant"], "--arrivals constant: needs a finite --request-rate"),
        (["--burstiness", 2], "--arrivals gamma: needs a finite --request-rate"),
        (["--arrivals", "infinite", "--request-rate", 1], "--request-rate: has no meaning"),
        (["--arrivals", "poisson", "--request-rate", 1, "--burstiness", 2], "gamma has it"),
        (["--arrivals", "trace"], "needs --arrival-trace F.jsonl"),
        (["--time-scale", 2], "--time-scale: goes with --arrivals trace"),
        (["--set", "sampling.n=2"], "sampling: n must be 1 in a benchmark, got 2"),
        (["--metadata", "x"], "--metadata x: must be KEY=VALUE"),
        (["--json", "/nowhere/f.json"], "--json /nowhere/f.json: cannot be written"),
        (["--chart", "f.gif"], "--chart f.gif: must end in one of"),
        (["--request-rate", 0], "--request-rate: must be a number > 0, got 0"),
        (["--request-rate", "fast"], "must be a number > 0, got fast"),
        (["--num-prompts", 0], "--num-prompts: must be an integer >= 1, got 0"),
        (["--seed", "x"], "--seed: must be an integer >= 0, got x"),
        (["--input-len", "9-4"], "must be N or LOW-HIGH with LOW <= HIGH, got 9-4"),
        (["--input-len", "0-4"], "must be an integer >= 1, got 0"),
        (["--metric-percentiles", "50,101"], "must be numbers of 0 to 100, got 50,101"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_input_is_one_error_before_a_model_is_opened(call, unopened, args, message):
    status, out, err = call("bench", "serve", "--model", "x", *args)
    assert status == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert err.count("error:") == 1


def test_a_line_of_several_samples_is_no_request_of_a_benchmark(call, unopened, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "a", "n": 2}')
    args = ("--dataset", "jsonl", "--dataset-path", path)
    status, _, err = call("bench", "throughput", "--model", "x", *args)
    assert status == 2
    assert "--dataset-path: request 1 (from 0): n must be 1" in err


def test_no_kind_is_bad_usage(call):
    status, _, err = call("bench")
    assert status == 2
    assert "KIND" in err


def test_failures_are_told_and_have_no_part_in_the_figures(call, model, tmp_path):
    trace, out = tmp_path / "trace.jsonl", tmp_path / "f.json"
    lines = [{"timestamp": 0, "input_length": n, "output_length": 2} for n in (900, 5)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    args = ("--dataset", "trace", "--dataset-path", trace, "--json", out, "--save-detailed")
    status, _, err = call("bench", "throughput", *model, *args)
    assert status == 1
    assert "error: 1 of 2 requests failed; the first, request 0 (from 0): prompt: has 900" in err
    found = json.loads(out.read_text())
    assert (found["completed"], found["failed"], found["total_input_tokens"]) == (1, 1, 5)
    assert found["errors"][0].startswith("prompt: has 900")
    out.unlink()
    status, _, err = call("bench", "throughput", *model, *args, "--num-prompts", 1)
    assert (status, "every request failed" in err) == (1, True)
    assert not out.exists()


def test_an_interrupt_leaves_no_file(call, model, tmp_path, monkeypatch):
    out, open_runtime = tmp_path / "f.json", bench.open_runtime

    def open_interrupted(config):
        runtime = open_runtime(config)
        step, count = runtime.step, iter(range(100))

        def interrupted():
            if next(count) == 6:
                os.kill(os.getpid(), signal.SIGINT)
            return step()

        runtime.step = interrupted
        return runtime

    monkeypatch.setattr(bench, "open_runtime", open_interrupted)
    status, shown, err = call("bench", "latency", *model, *SMALL["latency"], "--json", out)
    assert (status, shown) == (130, "")
    assert "interrupted: there are no figures" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.00"), (99.123, "99.12"), (123.45, "123.5"), (20680.4, "20,680")],
)
def test_large_times_have_fewer_decimals(value, text):
    assert in_digits(value) == text


def test_the_flags_know_every_kind_of_arrivals():
    for kind in bench_flags.ARRIVALS:
        assert len(Arrivals(kind, 1.0, trace_s=(0.0,)).times(1, _Rng())) == 1


class _Rng:
    def gamma(self, shape, scale, size):
        return [1.0] * size
