"""The libraries' real signatures, read from their published sources into `signatures.json`.

Adapter tests call fakes, and fakes have the real signatures, so every call that those tests see
binds to the real functions.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_backends._flash_attention_2 import DECODE_KEYWORDS, MIXED_KEYWORDS
from attention_backends._flash_attention_3 import KEYWORDS
from attention_backends._flash_infer_wrappers import LIBRARY as FLASH_INFER
from attention_backends._kernel_library import misfit
from runtime.config.environment import TEST_PREFIX
from tests.unit.attention_backends.fakes import (
    fake_flash_attention_2,
    fake_flash_attention_3,
    fake_flashinfer,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RECORDED = json.loads((HERE / "signatures.json").read_text())
FETCH = "STEPGRAPH_TEST_FETCH_WHEELS"


def real(package: str, file: str, name: str) -> Callable[..., None]:
    """A function with the recorded parameters; all their defaults are literals."""
    source = f"def function({RECORDED[package]['files'][file][name]}): pass"
    scope: dict[str, Callable[..., None]] = {}
    exec(source, scope)
    return scope["function"]


FLASH_2 = ("flash-attn", "/flash_attn/flash_attn_interface.py")
FLASH_3 = ("tokenspeed-fa3", "flash_attn_interface.py")
FLASH_3_UPSTREAM = ("flash-attn", "/hopper/flash_attn_interface.py")
WRAPPERS = {
    "flashinfer/prefill.py": fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper,
    "flashinfer/decode.py": fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper,
}
FAKES = [
    ((*FLASH_2, "flash_attn_with_kvcache"), fake_flash_attention_2.flash_attn_with_kvcache),
    ((*FLASH_2, "flash_attn_varlen_func"), fake_flash_attention_2.flash_attn_varlen_func),
    ((*FLASH_3, "flash_attn_with_kvcache"), fake_flash_attention_3.flash_attn_with_kvcache),
    *(
        (("flashinfer-python", file, name), getattr(WRAPPERS[file], name.split(".")[1]))
        for file, functions in RECORDED["flashinfer-python"]["files"].items()
        for name in functions
    ),
]


def plain(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize(("where", "fake"), FAKES, ids=lambda v: v[2] if type(v) is tuple else "")
def test_fakes_have_the_real_signatures(
    where: tuple[str, str, str], fake: Callable[..., object]
) -> None:
    assert plain(fake) == plain(real(*where))


@pytest.mark.parametrize("source", [FLASH_3, FLASH_3_UPSTREAM])
def test_both_builds_of_version_3_take_our_call(source: tuple[str, str]) -> None:
    function = real(*source, "flash_attn_with_kvcache")
    assert not misfit(function, KEYWORDS)
    assert "'out'" in misfit(function, [*KEYWORDS, "out"])


def test_version_2_takes_our_calls() -> None:
    assert not misfit(real(*FLASH_2, "flash_attn_with_kvcache"), DECODE_KEYWORDS)
    assert not misfit(real(*FLASH_2, "flash_attn_varlen_func"), MIXED_KEYWORDS)


def test_flash_infer_takes_our_calls() -> None:
    files = {"Prefill": "flashinfer/prefill.py", "Decode": "flashinfer/decode.py"}
    for dotted, keywords in FLASH_INFER.calls:
        file = files["Prefill" if "Prefill" in dotted else "Decode"]
        name, keywords = (dotted, keywords) if "." in dotted else (f"{dotted}.__init__", keywords)
        if name.endswith("__init__"):
            keywords = ("self", *keywords)
        function = real("flashinfer-python", file, name)
        assert not misfit(function, keywords), name
        if "kwargs" not in inspect.signature(function).parameters:
            assert "'unheard_of'" in misfit(function, [*keywords, "unheard_of"]), name


def test_the_variable_is_no_unknown_key_of_the_configuration() -> None:
    assert FETCH.startswith(TEST_PREFIX)


@pytest.mark.slow
@pytest.mark.skipif(FETCH not in os.environ, reason=f"downloads 130 MB: set {FETCH}=1")
def test_recorded_signatures_are_those_of_the_packages() -> None:
    command = [sys.executable, str(ROOT / "tools/kernel_signatures.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if "CalledProcessError" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stderr[-2000:]
