"""tools/bench_scaling.py on a tiny model of random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from attention_backends import compiler_problem
from tests.builders import write_config
from tools._decode_steps import Case, Found, KernelTimes, UnseenLaunchError
from tools._scaling_chart import COLOURS, chart

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_scaling.py"
PARTS = ["linear", "attention", "rows", "head", "host"]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
def test_every_case_has_its_time_or_its_reason(tmp_path: Path) -> None:
    folder, out, bars = write_config(tmp_path / "m"), tmp_path / "s.json", tmp_path / "s.svg"
    kv_of_one = 240 * 2 * 2 * 2 * 16 * 2
    done = run(
        *(folder, "--format", "dummy", "--threads", 1, 2, "--batch", 1, 5),
        *("--context", 20, 200, "--memory", 2 * kv_of_one, "--json", out, "--chart", bars),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" ms\n") == 6
    steps = json.loads(out.read_text())["steps"]
    cases = [(s["threads"], s["batch"], s["context"]) for s in steps]
    assert cases == [(t, b, c) for t in (1, 2) for b in (1, 5) for c in (20, 200)]
    for step in steps:
        if (step["batch"], step["context"]) == (5, 200):
            assert step["left_out"].startswith("KV is ")
            continue
        parts = step["parts_ms"]
        assert list(parts) == PARTS
        assert min(parts.values()) > 0
        assert sum(parts.values()) == pytest.approx(step["eager_ms"], rel=0.01)
        assert step["kind"] == "decode", "it was not replayed from a recording"
        assert step["us_per_token"] == pytest.approx(
            step["step_ms"] * 1e3 / step["batch"], rel=0.01
        )
    assert "KV is" in done.stdout
    assert bars.read_text().count("µs a token") == 3


def timed(**seconds: float) -> KernelTimes:
    times = KernelTimes(SimpleNamespace())
    times.seconds = dict.fromkeys(PARTS[:-1], 0.1) | seconds
    times.kernels = Counter(linear_bfloat16=8, stepgraph_attention=2)
    return times


def test_a_kernel_that_was_not_timed_is_an_error() -> None:
    launched = Counter(linear_bfloat16=8, stepgraph_attention=2)
    timed().check(launched)
    with pytest.raises(UnseenLaunchError, match=r"not timed: \{'stepgraph_attention': 1\}"):
        timed().check(launched + Counter(stepgraph_attention=1))
    with pytest.raises(UnseenLaunchError, match="launched for linear"):
        timed(linear=0.0).check(launched)


@pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
def test_a_module_whose_launches_are_missed_ends_the_run(tmp_path: Path) -> None:
    """It keeps the launch that it had at its import."""
    hide = (
        "import runpy, sys; from runtime.ops.native import linear; kept = linear.launch; "
        "linear.launch = lambda *args: kept(*args); "
        f"sys.argv[:] = {{arguments}}; runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    )
    folder = write_config(tmp_path / "m")
    arguments = [str(TOOL), str(folder), "--format", "dummy", "--threads", "1"]
    arguments += ["--batch", "1", "--context", "20"]
    done = subprocess.run(
        [sys.executable, "-c", hide.format(arguments=arguments)],
        cwd=TOOL.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "kernels were launched but not timed: {'linear_bfloat16_" in done.stderr


def extents(svg: str) -> tuple[float, float, list[tuple[float, float, float, float, str]]]:
    """Width and height of the page; (left, top, right, bottom, text) of each text in a wide font
    and of each bar."""
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = []
    for node in list(root)[1:]:
        at = {k: float(v) for k, v in node.attrib.items() if k in ("x", "y", "width", "height")}
        if "width" in at:
            box = (at["x"], at["y"], at["x"] + at["width"], at["y"] + at["height"], "bar")
        else:
            size = float(node.attrib.get("font-size", 12))
            wide = len(node.text or "") * size * 0.63
            left = at["x"] - wide * (node.attrib.get("text-anchor") == "end")
            box = (left, at["y"] - 0.8 * size, left + wide, at["y"] + 0.2 * size, node.text or "")
        found.append(box)
    return width, height, found


def test_nothing_in_the_chart_overlaps_or_leaves_the_page() -> None:
    parts = dict(zip(COLOURS, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True))
    found: dict[Case, Found | str] = {
        Case(threads, batch, context): Found(123_456.78, "decode", 15.0, parts)
        for threads in (1, 16)
        for batch in (1, 1024)
        for context in (128, 131_072)
    }
    found[Case(16, 1024, 131_072)] = "KV is 3 GiB"
    svg = chart(found, "A-Model-Of-Quite-Some-Name & Size <70B>, bfloat16, cpu_native" * 2)
    width, height, boxes = extents(svg)
    assert svg.count("µs a token") == 3
    for left, top, right, bottom, text in boxes:
        assert min(left, top) >= 0, text
        assert right <= width, text
        assert bottom <= height, text
    for a, b in combinations(boxes, 2):
        is_beside = a[2] <= b[0] + 0.15 or b[2] <= a[0] + 0.15
        assert is_beside or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_without_time_nothing_is_measured(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "m")
    done = run(folder, "--format", "dummy", "--batch", 1, "--context", 9, "--seconds", 0)
    assert done.returncode == 1
    assert "no time" in done.stdout


def test_it_refuses_what_is_no_batch() -> None:
    done = run("--batch", 0)
    assert done.returncode == 2
    assert "at least 1" in done.stderr
