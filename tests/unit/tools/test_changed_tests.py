"""Which tests `tools/test.sh --quick` chooses."""

import json
import subprocess

import pytest

from tools import changed_tests
from tools.changed_tests import FLOORS, changed_files, choose, main

TESTS = {
    FLOORS: "",
    "tests/unit/test_engine.py": "from runtime.engine import Engine\n",
    "tests/unit/text/test_stream.py": "from runtime.text import TextStream\n",
    "tests/unit/text/test_stop_strings.py": "from runtime.text.stop_strings import StopStrings\n",
    "tests/unit/sampling/test_edits.py": "from runtime.text.stop_strings import StopStrings\n",
    "tests/unit/ops/test_linear.py": "",
    "tests/unit/native/test_sanitizers.py": "",
    "tests/unit/graphs/test_recorded.py": "",
    "tests/unit/tools/test_bench_step.py": "from tools import bench_step\n",
    "tests/integration/test_cli.py": "from runtime.text.stop_strings import StopStrings\n",
}


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        (
            "runtime/text/stop_strings.py",
            [
                "tests/unit/sampling/test_edits.py",
                FLOORS,
                "tests/unit/text/test_stop_strings.py",
                "tests/unit/text/test_stream.py",
            ],
        ),
        ("runtime/engine.py", ["tests/unit/test_engine.py", FLOORS]),
        (
            "runtime/ops/native/linear.cpp",
            [
                "tests/unit/ops/test_linear.py",
                FLOORS,
                "tests/unit/native/test_sanitizers.py",
            ],
        ),
        ("graphs/recorded.py", ["tests/unit/graphs/test_recorded.py", FLOORS]),
        ("tools/bench_step.py", [FLOORS, "tests/unit/tools/test_bench_step.py"]),
        ("tests/integration/test_cli.py", ["tests/integration/test_cli.py", FLOORS]),
        ("tests/unit/text/vocabularies.py", [FLOORS, *sorted(t for t in TESTS if "/text/" in t)]),
        ("docs/cpu.md", [FLOORS]),
    ],
)
def test_what_a_change_chooses(changed, chosen):
    found = list(choose([changed], TESTS))
    assert set(found) == set(chosen)
    assert found == sorted(found, key=chosen.index)


def test_what_all_share_chooses_every_unit_test():
    assert set(choose(["tests/builders.py"], TESTS)) == {t for t in TESTS if "/unit/" in t}


@pytest.fixture
def checkout(tmp_path):
    def git(*words):
        name = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name):
        (tmp_path / name).write_text(name)

    git("init", "-b", "main")
    write("a.py")
    git("add", "-A")
    git("commit", "-m", "a")
    write("b.py")
    git("add", "-A")
    git("commit", "-m", "b")
    return tmp_path, git, write


def test_a_clean_main_is_its_last_commit(checkout):
    assert changed_files(checkout[0]) == ["b.py"]


def test_a_branch_is_all_that_it_adds(checkout):
    folder, git, write = checkout
    git("checkout", "-b", "more")
    write("c.py")
    git("add", "-A")
    git("commit", "-m", "c")
    write("d.py")
    (folder / "a.py").write_text("changed")
    assert changed_files(folder) == ["a.py", "c.py", "d.py"]


def test_outside_of_a_checkout_there_is_one_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(changed_tests, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("--quick asks git what changed, and git says: ")
    assert said.err.count("\n") == 1


def test_the_files_are_listed_and_their_reasons_beside(capsys):
    assert main(["runtime/text/stop_strings.py"]) == 0
    said = capsys.readouterr()
    assert "tests/unit/text/test_stop_strings.py" in said.out.split()
    assert "left out" in said.err
    assert main(["--json", "docs/cpu.md"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == {FLOORS: "always"}
