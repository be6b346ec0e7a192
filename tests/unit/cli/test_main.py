"""The front of the command line: help, versions, usage errors, and how fast it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import __version__
from runtime.cli.commands import COMMANDS
from runtime.cli.exit_codes import HELP

ROOT = Path(__file__).parents[3]


def python(*argv, **kw):
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPGRAPH_")}
    return subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=env,
        check=False,
        **kw,
    )


@pytest.mark.parametrize("argv", [["--help"], *[[c, "--help"] for c in COMMANDS], ["--version"]])
def test_help_imports_nothing_heavy(argv):
    code = (
        "import sys\nfrom runtime.cli.main import run\n"
        f"try: run({argv})\nexcept SystemExit as e: assert not e.code\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'ruamel'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_a_bad_configuration_is_found_without_torch(tmp_path):
    code = (
        "import sys\nfrom runtime.cli.main import run\n"
        "status = run(['generate', '--config', 'gone.yaml'])\n"
        "sys.exit('torch' in sys.modules or status != 2)"
    )
    assert python("-c", code).returncode == 0


def test_module_and_exit_status():
    done = python("-m", "runtime", "generate", "--config", "gone.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "stepgraph: error: gone.yaml: cannot be read: No such file or directory\n"
    )


def test_help_documents_the_exit_status(call):
    for argv in (["--help"], ["generate", "--help"]):
        status, out, _ = call(*argv)
        assert status == 0
        for number in ("0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "130 "):
            assert f"\n  {number}" in out


def test_the_readme_documents_the_same(call):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = readme.partition("Exit status: ")[2].replace(";", ",")
    for line in HELP.splitlines()[1:]:
        number, text = line.split(maxsplit=1)
        assert f"{number} {text.replace(';', ',')}" in said


def test_version(call):
    assert call("--version") == (0, f"stepgraph {__version__}\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["generat"],
        ["generate", "--confg", "x"],
        ["generate", "--conf", "x"],
        ["generate", "--max-tokens", "many"],
        ["generate", "extra"],
        ["show-config", "--explain", "yes"],
    ],
)
def test_bad_usage(call, argv):
    status, out, err = call(*argv)
    assert status == 2
    assert out == ""
    assert "usage: stepgraph" in err


@pytest.mark.parametrize("argv", [["--conf", "x"], ["--prompt", "a", "extra"], ["--quiet", "-v"]])
def test_usage_is_that_of_the_command(call, argv):
    status, _, err = call("generate", *argv)
    assert status == 2
    assert err.startswith("usage: stepgraph generate [-h]")
    assert err.splitlines()[-1].startswith("stepgraph generate: error: ")


@pytest.mark.case("CL03")
def test_a_switch_takes_no_value(call):
    assert call("generate", "--stream", "true")[0] == 2


@pytest.mark.case("CL05")
def test_every_problem_of_a_file_on_one_screen(call, run_file):
    path = run_file("model: {path: x}\nscheduler:\n  max_num_batched_token: 64\ncache: {hash: 1}\n")
    status, _, err = call("generate", "--config", path, "--prompt", "a")
    assert status == 2
    assert f"{path}:3: scheduler.max_num_batched_token: unknown key; did you mean" in err
    assert f"{path}:4: cache.hash: must be one of xxh3_128, sha256, got 1" in err


def test_a_reader_that_leaves_early():
    code = (
        "import sys; sys.argv[0] = 'stepgraph'; from runtime.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "show-config", "--model", "x"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_an_output_that_takes_nothing():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "runtime", "show-config", "--model", "x"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 5
    assert done.stderr == "stepgraph: error: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """What is printed is lost, and no file takes the place of the stream."""
    out = tmp_path / "out.jsonl"
    code = (
        "import sys; from runtime.cli import generate; from runtime.cli.main import main;"
        "from tests.unit.cli.fakes import FakeRuntime; generate.open_runtime = FakeRuntime;"
        f"sys.argv[1:] = ['generate', '--model', 'x', '--prompt', 'a', '--output', {str(out)!r}];"
        "sys.exit(main())"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("tokens/s" in done.stderr) == ("2>&-" not in closed)
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [0]
