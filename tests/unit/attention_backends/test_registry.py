import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import attention_backends._choose as choose
from attention_backends import (
    BackendChoiceError,
    GraphSupport,
    Support,
    backend_names,
    choose_backend,
    examine_all,
    torch_paged,
)
from tests.unit.attention_backends.reference import CPU, make_shape

SHAPES = [make_shape()]


def fake(answer, preference=0):
    def examine(shape, block_size, device):
        if isinstance(answer, Exception):
            raise answer
        return answer(shape, block_size) if callable(answer) else answer

    return SimpleNamespace(examine=examine, preference=lambda device: preference)


@pytest.fixture
def backends(monkeypatch):
    """Replace the backends by fakes: name -> class, or an exception for a failing import."""

    def install(**classes):
        def import_module(name):
            found = classes[name.split(".")[1]]
            if isinstance(found, Exception):
                raise found
            return SimpleNamespace(Backend=found)

        monkeypatch.setattr(choose, "backend_names", lambda: sorted(classes))
        monkeypatch.setattr(choose.importlib, "import_module", import_module)

    return install


def test_every_file_without_an_underscore_is_a_backend_and_none_is_imported_to_say_so():
    code = (
        "import sys, attention_backends as a; names = a.backend_names();"
        "print(*names); print(*[n for n in names if f'attention_backends.{n}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert "torch_paged" in done[0].split()
    assert done[0].split() == backend_names()
    assert done[1] == ""


@pytest.mark.parametrize("block_size", [1, 4, 16, None])
@pytest.mark.case("AT13")
def test_the_reference_serves_any_block_size_on_the_cpu(block_size):
    choice = choose_backend("torch_paged", SHAPES, block_size, CPU)
    assert choice.backend is torch_paged.Backend
    assert choice.block_size == (block_size or 16)


def test_auto_on_the_cpu_is_able_and_tells_who_was_passed_over():
    choice = choose_backend("auto", SHAPES, 16, CPU)
    assert choice.backend.examine(SHAPES[0], 16, CPU).ok
    answers = examine_all(SHAPES, 16, CPU)
    assert set(answers) == set(backend_names())
    assert all(answer.ok or answer.reason for answer in answers.values())
    assert all(not answers[name].ok for name in choice.passed_over)


def test_an_unknown_name_lists_the_names_with_a_suggestion():
    with pytest.raises(BackendChoiceError, match=r"'torch_page'; did you mean 'torch_paged'\?"):
        choose_backend("torch_page", SHAPES, 16, CPU)
    with pytest.raises(BackendChoiceError, match=r"allowed: auto, .*torch_paged"):
        choose_backend("_interface", SHAPES, 16, CPU)


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_auto_takes_the_most_preferred_able_one(backends, caplog, level):
    caplog.set_level(level)
    backends(
        slow=fake(Support(True), 0),
        quick=fake(Support(True), 5),
        quicker=fake(Support(False, "no such chip"), 9),
    )
    choice = choose_backend("auto", SHAPES, 16, CPU)
    assert choice.backend.preference(CPU) == 5
    assert choice.passed_over == {"quicker": "no such chip"}
    assert "attention backend: quick\n" in caplog.text
    told = "attention backends passed over: quicker: no such chip" in caplog.text
    assert told == (level == "DEBUG")  # a CPU has no use for most of them


def test_auto_asks_nobody_behind_its_choice(backends):
    """Asking may load a library."""
    backends(quick=fake(Support(True), 5), slow=fake(RuntimeError("was asked"), 0))
    choice = choose_backend("auto", SHAPES, 16, CPU)
    assert choice.backend.preference(CPU) == 5
    assert "was asked" in examine_all(SHAPES, 16, CPU)["slow"].reason


def test_asking_for_one_that_cannot_lists_every_reason(backends):
    backends(
        a=fake(Support(False, "needs a GPU")),
        b=fake(Support(True)),
        c=ImportError("no module named kernel"),
        d=fake(RuntimeError("driver gone")),
    )
    with pytest.raises(BackendChoiceError) as caught:
        choose_backend("a", SHAPES, 16, CPU)
    message = str(caught.value)
    assert "a: needs a GPU" in message
    assert "b: able with block size 16" in message
    assert "c: cannot be imported: ImportError: no module named kernel" in message
    assert "d: examine failed: RuntimeError: driver gone" in message
    assert choose_backend("auto", SHAPES, 16, CPU).passed_over == {"a": "needs a GPU"}


def test_a_file_without_a_backend_class_is_unable(backends, monkeypatch):
    backends(a=fake(Support(True)))
    monkeypatch.setattr(choose.importlib, "import_module", lambda name: SimpleNamespace())
    assert "cannot be imported: AttributeError" in examine_all(SHAPES, 16, CPU)["a"].reason


def test_a_preference_that_fails_is_told_as_such(backends):
    def preference(device):
        raise RuntimeError("driver gone")

    broken = SimpleNamespace(examine=lambda *asked: Support(True), preference=preference)
    backends(a=broken, b=fake(Support(True)))
    reason = "preference failed: RuntimeError: driver gone"
    assert examine_all(SHAPES, 16, CPU)["a"].reason == reason
    assert choose_backend("auto", SHAPES, 16, CPU).backend.preference(CPU) == 0
    with pytest.raises(BackendChoiceError, match=f"a: {reason}"):
        choose_backend("a", SHAPES, 16, CPU)


def test_when_none_is_able_auto_says_why(backends):
    backends(a=fake(Support(False, "one")), b=fake(Support(False, "two")))
    with pytest.raises(BackendChoiceError, match=r"(?s)auto cannot.*a: one.*b: two"):
        choose_backend("auto", SHAPES, 16, CPU)


@pytest.mark.case("AT13")
def test_a_block_size_that_a_backend_refuses_is_refused_with_the_multiple(backends):
    backends(wide=fake(Support(True, block_size_multiple=256, preferred_block_size=256)))
    with pytest.raises(BackendChoiceError, match="block size of 16 is not a multiple of 256"):
        choose_backend("wide", SHAPES, 16, CPU)
    assert choose_backend("wide", SHAPES, 512, CPU).block_size == 512
    assert choose_backend("wide", SHAPES, None, CPU).block_size == 256


def test_a_refusal_that_names_the_block_size_is_asked_again_with_the_preferred_one(backends):
    def examine(shape, block_size):
        ok = block_size % 128 == 0
        return Support(ok, "" if ok else "block size % 128", preferred_block_size=128)

    backends(wide=fake(examine))
    assert choose_backend("auto", SHAPES, None, CPU).block_size == 128


def test_layers_of_several_shapes_get_what_all_of_them_allow(backends):
    windowed = make_shape(window=8)

    def examine(shape, block_size):
        if shape.softcap:
            return Support(False, "softcap")
        graph = GraphSupport.RAGGED if shape.window is None else GraphSupport.ONE_TOKEN
        return Support(True, graph=graph, bucketed_kv=shape.window is None)

    backends(a=fake(examine))
    support = examine_all([make_shape(), windowed], 16, CPU)["a"]
    assert support.graph is GraphSupport.ONE_TOKEN
    assert support.bucketed_kv
    with pytest.raises(BackendChoiceError, match="a: softcap"):
        choose_backend("auto", [make_shape(), make_shape(softcap=2.0)], 16, CPU)


def test_dtype_that_no_backend_serves():
    with pytest.raises(BackendChoiceError, match=r"torch_paged: dtype torch.float64 is not one of"):
        choose_backend("auto", [make_shape(dtype=torch.float64)], 16, CPU)
