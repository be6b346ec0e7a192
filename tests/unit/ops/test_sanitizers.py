"""The op kernels under the address and undefined-behaviour sanitizers, apart from Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from attention_backends import able_isas, compiler_problem
from attention_backends._native.build import ABI_FOLDER, _compiler
from attention_backends._native.cpu import ISA_FLAGS
from runtime.ops.native import ops_source

HERE = Path(__file__).parent
DRIVER = HERE / "ops_driver.cpp"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FILES = [file for file in ops_source().files if file.stem.startswith("linear")]
VARIANTS = [*able_isas(), "emulated tiles"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem()),
]


def build(driver: Path, target: Path, *flags: str) -> subprocess.CompletedProcess:
    folders = (ABI_FOLDER, FILES[0].parent, HERE)
    includes = [flag for folder in folders for flag in ("-I", str(folder))]
    common = ["-std=c++17", "-O1", "-w", *SANITIZERS, *includes, *flags]
    command = [_compiler()[0], *common, str(driver), *map(str, FILES), "-o", str(target)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module", autouse=True)
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "empty.cpp").write_text("int main() { return 0; }\n")
    result = build(folder / "empty.cpp", folder / "empty")
    if result.returncode or subprocess.run([folder / "empty"]).returncode:
        pytest.skip(f"no sanitizer runtime: {result.stderr.strip()[-300:]}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_access_out_of_bounds_and_no_undefined_behaviour(variant: str, tmp_path: Path) -> None:
    flags = ISA_FLAGS.get(variant)
    if flags is None:
        isa = [name for name in able_isas() if name != "amx"][-1]
        flags = (*ISA_FLAGS[isa], "-DSTEPGRAPH_EMULATED_TILES")
    result = build(DRIVER, tmp_path / "driver", *flags)
    assert result.returncode == 0, result.stderr[:3000]
    ran = subprocess.run([tmp_path / "driver"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout == "done\n"


def test_the_sanitizers_find_what_is_planted(tmp_path: Path) -> None:
    """A row of outputs one element too short, in the same build, does fail."""
    text = DRIVER.read_text()
    whole = "out = make<Bf16>(rows * outputs);"
    assert whole in text
    planted = tmp_path / "planted.cpp"
    planted.write_text(text.replace(whole, "out = make<Bf16>(rows ? rows * outputs - 1 : 0);"))
    assert build(planted, tmp_path / "planted").returncode == 0
    ran = subprocess.run([tmp_path / "planted"], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr
