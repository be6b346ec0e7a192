"""Choosing a mode by name."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import graphs
from attention_backends import GraphSupport, Support, compiler_problem
from graphs import Case, GraphError, choose_mode, load_mode, mode_names, refusals

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


def support(graph: GraphSupport) -> Support:
    return Support(ok=True, graph=graph)


def test_names_are_the_files() -> None:
    folder = Path(graphs.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.name.startswith("_")}
    assert set(mode_names()) == files
    for name in files:
        assert load_mode(name).name == name


def test_a_mode_is_imported_only_when_chosen() -> None:
    code = "import sys, graphs; sys.exit('graphs.full' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(graphs.__file__).parents[1])


def test_unknown_names_are_errors_with_suggestions() -> None:
    wanted = r"^graphs\.mixed: no graph mode 'segmentd'; did you mean segmented\? \(allowed: auto, "
    with pytest.raises(GraphError, match=wanted) as caught:
        choose_mode("segmentd", "mixed", support(GraphSupport.NONE), CPU)
    assert all(name in str(caught.value) for name in mode_names())


@pytest.mark.parametrize("name", ["_captured", "os", "", "eager.Mode"])
def test_only_modes_are_modes(name: str) -> None:
    with pytest.raises(GraphError, match="no graph mode"):
        load_mode(name)


@pytest.mark.parametrize(
    ("name", "case", "graph", "device", "reason"),
    [
        ("full", "decode", GraphSupport.RAGGED, CPU, "the device is cpu"),
        ("full", "decode", GraphSupport.NONE, CUDA, "must support ONE_TOKEN"),
        ("full", "mixed", GraphSupport.RAGGED, CUDA, "only steps with one token"),
        ("segmented", "mixed", GraphSupport.NONE, CPU, "the device is cpu"),
        ("ragged", "mixed", GraphSupport.UNIFORM, CUDA, "must support RAGGED"),
        ("ragged", "mixed", GraphSupport.RAGGED, CPU, "the device is cpu"),
        ("emulated_ragged", "mixed", GraphSupport.ONE_TOKEN, CPU, "must support RAGGED"),
    ],
)
def test_refusals_give_every_reason(name, case, graph, device, reason) -> None:
    with pytest.raises(GraphError, match=rf"graphs\.{case}: {name} cannot be used") as caught:
        choose_mode(name, case, support(graph), device)
    assert reason in str(caught.value)
    assert all(f"{other}:" in str(caught.value) for other in mode_names())


@pytest.mark.parametrize(
    ("case", "graph", "device", "expected"),
    [
        ("decode", GraphSupport.RAGGED, CPU, "eager" if compiler_problem() else "recorded"),
        ("decode", GraphSupport.NONE, CPU, "eager"),
        ("mixed", GraphSupport.RAGGED, CPU, "eager"),
        ("decode", GraphSupport.ONE_TOKEN, CUDA, "full"),
        ("decode", GraphSupport.NONE, CUDA, "segmented"),
        ("mixed", GraphSupport.RAGGED, CUDA, "segmented"),
        ("mixed", GraphSupport.NONE, CUDA, "segmented"),
    ],
)
def test_auto(case, graph, device, expected) -> None:
    assert choose_mode("auto", case, support(graph), device).name == expected


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("graph", list(GraphSupport))
@pytest.mark.parametrize("case", list(Case))
def test_an_able_mode_has_a_kind_for_the_case(case, graph, device) -> None:
    for name, reason in refusals(case, support(graph), device).items():
        mode = load_mode(name)
        kind = mode.kind_of_decode if case is Case.DECODE else mode.kind_of_mixed
        assert reason or kind is not None
