import io

from rich.console import Console

from runtime.cli.bench_screen import watcher_on
from runtime.workbench.client import Progress
from tests.unit.workbench.fakes import record


def shown(is_terminal, every_s):
    """What stands on the console after each of three steps."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=200)
    texts = []
    with watcher_on(console, 3) as watcher:
        watcher.on_end(record(ttft_s=0.25, itl_s=(0.004,)))
        for step in range(1, 4):
            watcher.on_step(Progress(step * every_s / 2, 1, 2, 40))
            texts.append(file.getvalue())
    return texts


def test_a_terminal_has_a_table():
    first, second, third = shown(True, 0.25)
    assert "requests" not in first, "too early"
    for text in ("1 of 3", "160.0", "250.0 / 250.0 ms", "4.0 / 4.0 ms"):
        assert text in second
    assert third == second, "too early again"


def test_elsewhere_a_line_comes_now_and_then():
    first, second, third = shown(False, 10.0)
    assert first == ""
    assert second.startswith("stepgraph: requests 1 of 3, in the engine 2, tokens/s 4.0,")
    assert second.count("\n") == 1
    assert third == second


def test_another_batch_begins_at_zero_again():
    file = io.StringIO()
    with watcher_on(Console(file=file, width=200), 3) as watcher:
        for time_s in (10.0, 1.0, 10.0):
            watcher.on_step(Progress(time_s, 0, 1, 10))
    assert file.getvalue().count("\n") == 2
