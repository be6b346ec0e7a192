"""Which tests `tools/test.sh --quick` chooses."""

import json
import subprocess

import pytest

from tools import changed_tests
from tools._imports import distances
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


def test_what_imports_reach_comes_last_and_nearest_first():
    sources = {
        "runtime/sampling/draw.py": "",
        "runtime/sampling/sampler.py": "def f():\n    from runtime.sampling import draw\n",
        "runtime/engine.py": "import runtime.sampling.sampler\n",
        "runtime/broken.py": "import (",
    }
    tests = {**TESTS, "tests/unit/runner/test_a.py": "from runtime.sampling.sampler import S\n"}
    chosen = choose(["runtime/sampling/draw.py"], tests, sources)
    assert list(chosen) == [
        FLOORS,
        "tests/unit/sampling/test_edits.py",
        "tests/unit/runner/test_a.py",
        "tests/unit/test_engine.py",
    ]
    assert chosen["tests/unit/test_engine.py"].endswith("reach runtime/sampling/draw.py at depth 3")
    slow = {"tests/integration/test_b.py": "import runtime.sampling.draw\n"}
    assert set(choose(["runtime/sampling/draw.py"], {**TESTS, **slow}, sources)) < set(TESTS)


def test_files_that_import_each_other_end_the_walk():
    pair = {"runtime/a.py": "import runtime.b", "runtime/b.py": "import runtime.a"}
    assert distances(["runtime/a.py", "gone.py"], pair) == {
        "runtime/a.py": (0, "runtime/a.py"),
        "runtime/b.py": (1, "runtime/a.py"),
    }


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


def test_main_is_its_last_commit_and_what_is_not_committed(checkout):
    folder, git, write = checkout
    write("staged é.py")
    git("add", "-A")
    write("untracked.py")
    assert changed_files(folder) == ["b.py", "staged é.py", "untracked.py"]


def test_a_new_branch_has_what_is_not_committed(checkout):
    folder, git, _ = checkout
    git("checkout", "-b", "more")
    assert changed_files(folder) == []
    git("mv", "a.py", "c.py")
    assert changed_files(folder) == ["a.py", "c.py"]


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
    assert main(["--changed", "tests/integration/test_cli.py", "docs/cpu.md"]) == 0
    assert capsys.readouterr().out == "tests/integration/test_cli.py\n"
    assert main(["--json", "docs/cpu.md"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == {FLOORS: "always"}
