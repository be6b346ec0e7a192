"""The attention kernels under the address and undefined-behaviour sanitizers, apart from Python."""

import subprocess
from pathlib import Path

import pytest

from attention_backends import able_isas, compiler_problem
from attention_backends._native.build import ABI_FOLDER, _compiler
from attention_backends._native.cpu import ISA_FLAGS
from attention_backends.cpu_native import SOURCE

DRIVER = Path(__file__).parent / "attention_driver.cpp"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(compiler_problem()), reason=compiler_problem()),
]


VARIANTS = list(dict.fromkeys([*able_isas()[:2], able_isas()[-1], "emulated_tiles"]))
"""Between AVX2 and the best set there is nothing that the best one does not hold as well."""


def compiled(target: Path, *arguments: str | Path) -> subprocess.CompletedProcess:
    includes = [flag for folder in (ABI_FOLDER, SOURCE.files[0].parent) for flag in ("-I", folder)]
    common = ("-std=gnu++17", "-O1", "-w", *SANITIZERS, *includes)
    command = [_compiler()[0], *common, *arguments, "-o", target]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "empty.cpp").write_text("int main() { return 0; }\n")
    result = compiled(folder / "empty", folder / "empty.cpp")
    if result.returncode or subprocess.run([folder / "empty"]).returncode:
        pytest.skip(f"no sanitizer runtime: {result.stderr.strip()[-300:]}")
    result = compiled(folder / "driver.o", "-c", DRIVER)
    assert result.returncode == 0, result.stderr[:3000]
    return folder / "driver.o"


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_access_out_of_bounds_and_no_undefined_behaviour(driver, variant):
    flags = ISA_FLAGS.get(variant, ())
    if variant == "emulated_tiles":
        if "avx512_bf16" not in able_isas():
            pytest.skip("emulated tiles need avx512_bf16")
        flags = (*ISA_FLAGS["avx512_bf16"], "-DSTEPGRAPH_EMULATED_TILES")
    program = driver.parent / variant
    result = compiled(program, *flags, driver, *SOURCE.files)
    assert result.returncode == 0, result.stderr[:3000]
    ran = subprocess.run([program], capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    assert ran.stdout.endswith("84 cases, 0 failed\n")


def test_the_sanitizers_find_what_is_planted(driver):
    """A read one element past the keys, in the same build, does fail."""
    planted = driver.parent / "planted.cpp"
    text = DRIVER.read_text()
    whole = "Numbers q((int64_t)tokens * c.q_heads * c.dim, c.dtype), k(kv_count, c.kv_dtype)"
    assert whole in text
    planted.write_text(text.replace(whole, whole.replace("k(kv_count,", "k(kv_count - 1,")))
    assert compiled(driver.parent / "planted", planted, *SOURCE.files).returncode == 0
    ran = subprocess.run([driver.parent / "planted"], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr
