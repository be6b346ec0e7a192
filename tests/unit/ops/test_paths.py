"""Which kernel multiplies: by measured rates, measured once, and nothing that cannot run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attention_backends import best_isa, load_library
from attention_backends._native import build as building
from attention_backends._native.build import CACHE_DIR_VARIABLE, NativeSource
from runtime.errors import ConfigError
from runtime.ops import check_path
from runtime.ops.native import ops_source, rates
from runtime.ops.native.paths import Paths, choose_paths
from runtime.ops.native.rates import PathRates, able_paths, measure, measured_widths
from tests.unit.ops.native_ops import DOT, ISAS, check_near, needs_compiler, ops_of, random
from tests.unit.ops.test_native_linear import exact, packed


def of(*by_rows: float) -> PathRates:
    return PathRates(None, dict(zip((1, 4, 8), by_rows, strict=True)))


def test_the_fastest_path_is_one_for_all_rows() -> None:
    assert choose_paths({"float": of(9, 20, 30), "dot": of(8, 30, 60)}) == Paths("dot")
    assert choose_paths({"float": of(9, 20, 30), "dot": of(9, 10, 15)}) == Paths("float")
    assert choose_paths({}) == Paths("float")


@pytest.mark.parametrize(
    ("tiles", "tiles_from"),
    [((1, 30, 90), 4), ((99, 1, 90), 8), ((99, 99, 1), None), ((99, 99, 99), 1)],
)
def test_tiles_begin_where_they_stay_faster(tiles: tuple[int, ...], tiles_from: int | None) -> None:
    paths = choose_paths({"float": of(9, 20, 30), "tiles": of(*tiles)})
    assert paths == Paths("float", tiles_from)
    for rows in range(12):
        is_above = tiles_from is not None and rows >= tiles_from
        assert paths.of(rows) == ("tiles" if is_above else "float")


def test_what_is_wanted_is_taken_where_it_runs() -> None:
    found = {"float": of(1, 1, 1), "dot": of(2, 2, 2)}
    assert choose_paths(found, "float") == Paths("float")
    assert choose_paths(found, "vnni") == Paths("dot")
    assert choose_paths({**found, "tiles": of(1, 1, 1)}, "tiles") == Paths("float", 0)


def test_widths_are_the_models_in_steps() -> None:
    assert measured_widths([576, 1536, 600]) == [1024, 1536]
    assert measured_widths([64]) == [512]
    assert measured_widths([4096, 14336]) == [4096, 8192]


@needs_compiler
def test_rates_are_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    library = load_library(ops_source("ops_rates", ("-DSTEPGRAPH_TEST=1",)), best_isa())
    first = measure(library, "bfloat16", [64], 2.0)
    assert list(first) == able_paths(library, "bfloat16")
    assert all(rate > 1e6 for found in first.values() for rate in found.by_rows.values())
    monkeypatch.setattr(rates, "_ask", None)
    assert measure(library, "bfloat16", [64], 2.0) == first
    (kept,) = library.path.parent.glob("rates-*.json")
    for damaged in ("", "[]", json.dumps({"float": {"unit": 1, "rates": {}}})):
        kept.write_text(damaged)
        monkeypatch.setattr(rates, "_ask", lambda *args: None)
        assert measure(library, "bfloat16", [64], 2.0) == {}


@needs_compiler
def test_a_path_that_ends_its_process_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose instructions a virtual CPU lists and does not have."""
    broken = tmp_path / "broken.cpp"
    broken.write_text(
        '#include "stepgraph_kernel.h"\n'
        'extern "C" STEPGRAPH_EXPORT void linear_bfloat16_float(const void*, Team*) {}\n'
        'extern "C" STEPGRAPH_EXPORT void linear_bfloat16_dot(const void*, Team*) '
        "{ __builtin_trap(); }\n"
    )
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    library = load_library(NativeSource("broken", (broken,)), "portable")
    found = measure(library, "bfloat16", [64], 2.0)
    assert list(found) == ["float"]
    assert choose_paths(found, "dot") == Paths("float")
    assert "do not take the path dot" in caplog.text


@needs_compiler
def test_an_instruction_set_that_the_cpu_only_lists_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = tmp_path / "trap.cpp"
    trap.write_text(
        '#include "stepgraph_kernel.h"\nextern "C" STEPGRAPH_EXPORT void '
        "stepgraph_instructions() {\n#ifdef __AVX2__\n__builtin_trap();\n#endif\n}\n"
    )
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(building, "INSTRUCTIONS", NativeSource("trap", (trap,)))
    building.best_isa.cache_clear()
    try:
        assert building.best_isa() == "portable"
    finally:
        building.best_isa.cache_clear()


@pytest.mark.skipif(DOT not in ISAS, reason="no bfloat16 dot product here")
def test_dot_products_of_every_number_of_rows() -> None:
    """Against float64, odd shapes; each row the same bits as alone."""
    weight = random(70, 96, dtype=torch.bfloat16) / 8
    panels = packed(DOT, weight)
    x = random(300, 96, dtype=torch.bfloat16)
    alone = torch.cat([ops_of(DOT).linear(row[None], panels, None) for row in x])
    check_near(alone, exact(x, weight, None).bfloat16())
    for rows in range(1, 301):
        assert torch.equal(ops_of(DOT).linear(x[:rows], panels, None), alone[:rows]), rows


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "inputs", "wanted", "words"),
    [
        (torch.bfloat16, {"bfloat16": [64]}, "vnni", r"\(bfloat16\).*here: auto, float"),
        (torch.bfloat16, {"q8_0": [64]}, "dot", r"\(q8_0\).*here: auto, float"),
        (torch.float32, {"bfloat16": [64]}, "float", "torch multiplies here.*float32"),
    ],
)
def test_a_path_that_serves_no_weight_is_refused(
    dtype: torch.dtype, inputs: dict[str, list[int]], wanted: str, words: str
) -> None:
    cpu = torch.device("cpu")
    check_path(cpu, dtype, inputs, "auto")
    check_path(cpu, torch.bfloat16, {**inputs, "bfloat16": [64]}, "float")
    with pytest.raises(ConfigError, match=f"model.linear_path: {wanted} .*{words}"):
        check_path(cpu, dtype, inputs, wanted)
