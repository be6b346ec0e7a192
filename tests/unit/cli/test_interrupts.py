"""Ctrl-C at any moment: exit status 130, one line, no traceback."""

import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress

import pytest

from runtime.cli.interrupts import held, never_swallowed
from tests.unit.cli.test_main import ROOT


@pytest.fixture(autouse=True)
def handled():
    """SIGINT raises KeyboardInterrupt, as in a process of its own, and does so again afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def nothing_but_interrupt():
    interrupt()
    pytest.fail("went on")


def swallow():
    with suppress(KeyboardInterrupt):
        interrupt()


def break_something():
    swallow()
    raise ImportError("half a module")


@pytest.mark.parametrize("action", [nothing_but_interrupt, swallow, break_something])
def test_an_interrupt_is_one_whatever_becomes_of_it(action):
    with pytest.raises(KeyboardInterrupt), never_swallowed():
        action()


def test_other_errors_pass():
    with pytest.raises(ImportError, match="really"), never_swallowed():
        raise ImportError("really")


def test_where_it_is_ignored_it_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with never_swallowed():
        interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_what_python_cannot_raise_is_not_shown_but_raised_later(capsys):
    class Thing:
        pass

    def lose_a_thing():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: interrupt())
        del thing
        assert reference() is None

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), never_swallowed():
        lose_a_thing()
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_an_import_is_not_broken_off():
    reached = []

    def half_way():
        interrupt()
        reached.append("end")

    with pytest.raises(KeyboardInterrupt), held():
        half_way()
    assert reached == ["end"]


def test_a_second_interrupt_does_not_wait():
    def twice():
        interrupt()
        interrupt()
        pytest.fail("went on")

    with pytest.raises(KeyboardInterrupt), held():
        twice()


def test_numpy_is_there_before_torch_looks_for_it():
    code = (
        "import sys, runtime.cli.main\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'torch': sys.exit('numpy' not in sys.modules)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "runtime.cli.main.run(sys.argv[1:])"
    )
    for command in (["check"], ["generate", "--model", "x", "--prompt", "a"]):
        done = subprocess.run([sys.executable, "-c", code, *command], cwd=ROOT, check=False)
        assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3, 0.7, 1.2])
def test_a_process_that_starts(delay_s, tmp_path):
    """At a moment between the first that is ours and the one when the model is looked for."""
    code = (  # tells that it has begun from inside `run`: before, no moment is ours
        "import sys, runtime.cli.interrupts as interrupts\n"
        "from runtime.cli.main import main\n"
        "begin = interrupts.never_swallowed\n"
        "interrupts.never_swallowed = lambda: (print(flush=True), begin())[1]\n"
        "sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *("generate", "--model", str(tmp_path), "--prompt", "a")],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("STEPGRAPH_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode != 3:  # a fast machine: the model has been looked for
        assert (process.returncode, err) == (130, "stepgraph: interrupted\n")
