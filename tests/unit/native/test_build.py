"""Building native libraries: cached, published whole, explained where it cannot be done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_backends._native import build as building
from attention_backends._native.build import (
    CACHE_DIR_VARIABLE,
    COMPILER_VARIABLE,
    NativeBuildError,
    NativeSource,
    build,
    cache_folder,
    compiler_problem,
)

needs_compiler = pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem())
SOURCE = """
#include "answer.h"
#include "stepgraph_kernel.h"
extern "C" STEPGRAPH_EXPORT int answer() { return VALUE; }
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.h").write_text("#define VALUE 42\n")
    (folder / "answer.cpp").write_text(SOURCE)
    return NativeSource("answer", (folder / "answer.cpp",))


@needs_compiler
def test_built_once_with_one_line(source, capfd):
    first = build(source, "portable")
    assert capfd.readouterr().err == "stepgraph: compiling answer kernels (portable), once\n"
    stamp = first.stat().st_mtime_ns
    assert build(source, "portable") == first
    assert first.stat().st_mtime_ns == stamp
    assert capfd.readouterr().err == ""
    left = {path.suffix for path in cache_folder().iterdir()}
    assert left == {".so", ".lock"}, "no temporary folder is left"


@needs_compiler
@pytest.mark.parametrize("change", ["header", "flags", "isa", "features"])
def test_what_the_code_depends_on_is_in_the_key(source, change, monkeypatch):
    before = build(source, "portable")
    isa = "portable"
    if change == "header":
        (source.files[0].parent / "answer.h").write_text("#define VALUE 43\n")
    elif change == "flags":
        source = NativeSource(source.name, source.files, ("-DOTHER=1",))
    elif change == "isa":
        isa = "avx2" if os.uname().machine == "x86_64" else pytest.skip("x86-64 only")
    else:
        monkeypatch.setattr(building, "cpu_features", lambda: frozenset({"another"}))
    assert build(source, isa) != before


@needs_compiler
def test_two_processes_at_once_get_the_same_whole_library(source, tmp_path):
    code = (
        "import ctypes, sys; from pathlib import Path\n"
        "from attention_backends._native.build import NativeSource, build\n"
        "path = build(NativeSource('answer', (Path(sys.argv[1]),)), 'portable')\n"
        "print(ctypes.CDLL(str(path)).answer(), path)\n"
    )
    command = [sys.executable, "-c", code, str(source.files[0])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), results
    assert results[0][0] == results[1][0]
    assert results[0][0].startswith("42 ")
    lines = "".join(err for _, err in results).count("compiling answer")
    assert lines == 1, "one compiles, the other waits and finds it"


@needs_compiler
def test_a_failure_shows_the_compilers_words_and_leaves_nothing(source):
    source.files[0].write_text("this is not C++\n")
    with pytest.raises(NativeBuildError, match=r"answer\.cpp with .* failed: [^\n]*error:[^\n]*$"):
        build(source, "portable")
    assert not list(cache_folder().glob("*.so"))


@needs_compiler
def test_what_a_killed_process_left_is_removed(source):
    name = build(source, "portable").name
    (cache_folder() / name).unlink()
    left = cache_folder() / f".{name}.abc"
    left.mkdir()
    (left / "answer.o").write_bytes(b"half")
    build(source, "portable")
    assert not left.exists()


def test_without_a_compiler_the_reason_says_what_to_do(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(COMPILER_VARIABLE, raising=False)
    assert "no C++ compiler" in compiler_problem()
    with pytest.raises(NativeBuildError, match=r"install g\+\+.*CXX"):
        build(source, "portable")


def test_a_named_compiler_that_is_missing_or_broken_is_told(source, monkeypatch, tmp_path):
    monkeypatch.setenv(COMPILER_VARIABLE, "no-such-compiler")
    with pytest.raises(NativeBuildError, match="no-such-compiler is not on the PATH"):
        build(source, "portable")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv(COMPILER_VARIABLE, str(broken))
    with pytest.raises(NativeBuildError, match="fails: out of order"):
        build(source, "portable")


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(blocked))
    with pytest.raises(NativeBuildError, match=CACHE_DIR_VARIABLE):
        build(source, "portable")


@needs_compiler
def test_an_instruction_set_that_the_compiler_does_not_know_is_passed_over(monkeypatch):
    monkeypatch.setattr(building, "able_isas", lambda: ["portable", "future"])
    monkeypatch.setitem(building.ISA_FLAGS, "future", ("-mno-such-instructions",))
    building.best_isa.cache_clear()
    try:
        assert building.best_isa() == "portable"
    finally:
        building.best_isa.cache_clear()


def test_sources_are_package_data():
    root = Path(building.__file__).parent
    assert {path.suffix for path in root.rglob("*") if path.is_file()} <= {
        ".cpp",
        ".h",
        ".py",
        ".pyc",
    }
