import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runtime.errors import ConfigError
from runtime.workbench import charts
from runtime.workbench.records import LoadRun
from tests.unit.workbench.fakes import record

RUN = LoadRun(
    tuple(record(i, sent_s=i, ttft_s=0.5, itl_s=(0.1, 0.3)) for i in range(4)), duration_s=5.0
)
EMPTY = LoadRun((record(ttft_s=None, error="x"),), 1.0)
ROOT = Path(__file__).parents[3]


def test_a_chart_shows_percentiles_throughput_and_gaps():
    figure = charts.figure_of({"a": RUN, "b": RUN}, "some title")
    latency, over_time, itls = figure.axes
    labels = [tick.get_text() for tick in latency.get_xticklabels()]
    assert labels[:2] == ["TTFT\np50", "TTFT\np75"]
    assert len(labels) == 20
    heights = dict(zip(labels, [bar.get_height() for bar in latency.patches], strict=False))
    assert heights["TTFT\np50"] == pytest.approx(500)
    assert heights["ITL\np50"] == pytest.approx(200)
    assert len(latency.patches) == 40
    assert over_time.patches[0].get_data().values.tolist() == [3, 3, 3, 3]
    assert itls.get_xlabel() == "ms"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert not charts.figure_of({"a": RUN}, "").legends


@pytest.mark.parametrize("runs", [{"a": RUN}, {"a": EMPTY}, {"a": EMPTY, "b": RUN}])
def test_it_is_a_file_and_equal_runs_give_equal_files(runs, tmp_path):
    path = tmp_path / "c.svg"
    file = charts.check_charts(str(path), "--chart")
    charts.draw(file, runs, "title")
    first = path.read_bytes()
    ElementTree.fromstring(first)
    charts.draw(file, runs, "title")
    assert path.read_bytes() == first
    for name in ("d.png", "d.pdf"):
        charts.draw(charts.check_charts(str(tmp_path / name), "--chart"), runs, "title")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "d.pdf").read_bytes().startswith(b"%PDF")


def test_other_types_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in one of \.svg, \.png, \.pdf"):
        charts.check_charts(str(tmp_path / "a.gif"), "--chart")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'stepgraph\[charts\]'"):
        charts.check_charts(str(tmp_path / "a.svg"), "--chart")


def test_matplotlib_is_imported_only_when_a_chart_is_asked_for():
    code = (
        "import sys, runtime.cli.bench_plan, runtime.workbench.charts\n"
        "print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
