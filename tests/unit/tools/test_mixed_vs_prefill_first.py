"""tools/mixed_vs_prefill_first.py on a tiny model of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.workbench.comparison import Measured
from runtime.workbench.records import LoadRun
from tests.builders import write_config
from tools import mixed_vs_prefill_first as tool
from tools._policy_report import curve, shortfalls, table

SMALL = ("--input-len", "8-40", "--output-len", "2-6", "--num-prompts", "6", "--num-warmups", "0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_config(tmp_path_factory.mktemp("model") / "tiny", vocab_size=300)
    sets = ("model.format=dummy", "engine.threads=1", "cache.memory=4MiB", "cache.block_size=4")
    return ["--model", str(folder), *(word for key in sets for word in ("--set", key))]


def run(*args: object) -> int:
    return tool.main([str(arg) for arg in args])


def test_both_policies_run_the_same_arrivals(model, tmp_path: Path, capsys) -> None:
    out, charts = tmp_path / "f.json", tmp_path / "charts"
    args = ("--budgets", 64, 72, "--json", out, "--charts", charts, "--load", 0.5)
    assert run(*model, *SMALL, *args) == 0
    found = json.loads(out.read_text())
    for load in ("rate", "all_at_once"):
        assert list(found[load]) == ["mixed", "mixed_72", "prefill_first"]
        assert len({f["total_input_tokens"] for f in found[load].values()}) == 1
        assert len({f["total_output_tokens"] for f in found[load].values()}) == 1
        for figures in found[load].values():
            assert figures["completed"] == 6
            assert figures["p99_itl_ms"] > 0
        budgets = [figures["max_num_batched_tokens"] for figures in found[load].values()]
        assert budgets == [64, 72, 64]
        assert found[load]["prefill_first"]["engine"]["mixed_steps"] == 0
    at_once = found["all_at_once"].values()
    slowest = min(figures["request_throughput"] for figures in at_once)
    assert found["about"]["request_rate"] == pytest.approx(0.5 * slowest)
    ratio = found["prefill_first_over_mixed"]["rate"]["p99_itl_ms"]
    rate = found["rate"]
    assert ratio == pytest.approx(rate["prefill_first"]["p99_itl_ms"] / rate["mixed"]["p99_itl_ms"])
    assert sorted(p.name for p in charts.iterdir()) == [
        *("all_at_once.svg", "budgets.svg", "rate.svg")
    ]
    shown = capsys.readouterr().out
    for text in ("mixed_72", "prefill_first", "ITL p99", "reference", "5.38", "all at once"):
        assert text in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--budgets", "8"], "--budgets"),
        (["--prefill-first-budget", "8"], "--prefill-first-budget"),
        (["--prefill-first-budget", "64", "--input-len", "90"], "prefill_first (a prompt runs"),
        (["--json", "/nowhere/f.json"], "--json /nowhere/f.json: cannot be written"),
        (["--charts", "/dev/null/x"], "--charts /dev/null/x: cannot be made"),
        (["--set", "nonsense.key=1"], "nonsense"),
    ],
)
def test_bad_input_is_one_error_and_no_file(model, tmp_path: Path, capsys, args, message) -> None:
    out = tmp_path / "f.json"
    assert run(*model, *SMALL, "--json", out, *args) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("error:") == 1
    assert not out.exists()


def test_defaults_are_the_references_proportions() -> None:
    full, quick = tool.parse_args([]), tool.parse_args(["--quick"])
    assert (full.num_prompts, full.input_len, full.output_len) == (256, (128, 2048), (64, 256))
    assert full.input_len[1] / quick.input_len[1] == full.output_len[1] / quick.output_len[1] == 4
    assert full.budgets[0] / quick.budgets[0] == 4
    assert tool.parse_args(["--quick", "--num-prompts", "3"]).num_prompts == 3
    configs = tool.configs_of(full)
    budgets = [config.scheduler.max_num_batched_tokens for config in configs.values()]
    assert budgets == [512, 2304], "prefill_first: the longest request"
    assert {config.model.max_model_len for config in configs.values()} == {2304}


def measured(**figures: float) -> Measured:
    columns = dict.fromkeys(f"p{p}_{m}_ms" for m in ("ttft", "tpot", "itl") for p in (50, 99))
    return Measured({"output_throughput": 100.0, **columns, **figures}, LoadRun((), 1.0))


def test_the_curve_has_a_point_for_each_budget_in_their_order() -> None:
    configs = tool.configs_of(tool.parse_args(["--budgets", "512", "128", "256"]))
    by_name = {
        name: measured(**{f"p99_{m}_ms": float(i) for m in ("ttft", "tpot", "itl")})
        for i, name in enumerate(configs, start=1)
    }
    figure = curve(configs, {"rate": by_name, "all_at_once": by_name})
    assert [axes.get_title() for axes in figure.axes][-1] == "p99 itl ms"
    points, dashed, *_ = figure.axes[-1].get_lines()
    assert list(points.get_xdata()) == [128, 256, 512]
    assert list(points.get_ydata()) == [2, 3, 1]
    assert list(dashed.get_ydata()) == [4, 4]


def test_what_falls_short_of_the_reference_is_told() -> None:
    found = {
        "rate": {
            "mixed": measured(p99_itl_ms=10.0, p99_ttft_ms=10.0, p99_tpot_ms=10.0),
            "prefill_first": measured(p99_itl_ms=60.0, p99_ttft_ms=20.0, p99_tpot_ms=13.0),
        },
        "all_at_once": {"mixed": measured(), "prefill_first": measured(output_throughput=99.0)},
    }
    assert shortfalls(found) == [
        "rate: p99_ttft_ms: 2.00, the reference has 2.22",
        "all_at_once: output_throughput: 0.99, the reference has 0.94",
    ]
    configs = tool.configs_of(tool.parse_args([]))
    assert table("rate", "title", configs, found["rate"]).row_count == 4
    found["rate"]["prefill_first"] = measured(p99_itl_ms=60.0, p99_ttft_ms=23.0, p99_tpot_ms=13.0)
    found["all_at_once"]["prefill_first"] = measured(output_throughput=90.0)
    assert shortfalls(found) == []
