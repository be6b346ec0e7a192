"""Libraries that are installed and of no use, as packages on the path: refused, with the reason."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from attention_backends import (
    BackendChoiceError,
    _chip,
    _flash_attention_3,
    examine_all,
    flash_infer,
)
from attention_backends import choose_backend as choose
from runtime.config import AttentionConfig
from runtime.errors import BackendError
from runtime.runner.backend import choose_backends
from tests.aside import needs_triton
from tests.unit.attention_backends.paging import make_shape

GPU = torch.device("cuda", 0)
ADA, HOPPER, BLACKWELL = (8, 9), (9, 0), (10, 0)
SHAPES = [make_shape((4, 2), 64, torch.bfloat16)]
FAKES = "from tests.unit.attention_backends.fakes"


class Package(NamedTuple):
    """A library as it may be installed."""

    backend: str
    module: str
    distribution: str
    chip: tuple[int, int]
    block_size: int
    first_call: str
    good: str
    """source of one that is as it should be"""


FA2 = Package(
    "flash_attention",
    "flash_attn",
    "flash-attn",
    ADA,
    256,
    "flash_attn_with_kvcache",
    f"{FAKES}.fake_flash_attention_2 import flash_attn_with_kvcache, flash_attn_varlen_func",
)
FA3 = Package(
    "flash_attention",
    "flash_attn_interface",
    "tokenspeed-fa3",
    HOPPER,
    16,
    "flash_attn_with_kvcache",
    f"{FAKES}.fake_flash_attention_3 import flash_attn_with_kvcache",
)
FI = Package(
    "flash_infer",
    "flashinfer",
    "flashinfer-python",
    ADA,
    16,
    "BatchPrefillWithPagedKVCacheWrapper",
    f"{FAKES}.fake_flashinfer import (\n"
    "    BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper)",
)
TRITON = Package("triton_paged", "triton", "triton", ADA, 16, "jit", "")
LIBRARIES = pytest.mark.parametrize("package", [FA2, FA3, FI], ids=lambda p: p.module)


class Site:
    """A folder on the path, the only place where these libraries are found."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.set_chip(ADA)

    def set_chip(self, chip: tuple[int, int]) -> None:
        for module in (_chip, _flash_attention_3):
            self._monkeypatch.setattr(module, "compute_capability", lambda device: chip)

    def install(self, package: Package, source: str | None = None, version: str = "9.8.7") -> None:
        """`source` in place of a good one."""
        source = package.good if source is None else source
        count = self.folder / f"{package.module}.loads"
        (self.folder / f"{package.module}.py").write_text(
            f"with open({str(count)!r}, 'a') as f:\n    f.write('x')\n{source}\n"
        )
        info = self.folder / f"{package.distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {version}\n"
        )
        importlib.invalidate_caches()

    def loads(self, package: Package) -> int:
        count = self.folder / f"{package.module}.loads"
        return len(count.read_text()) if count.exists() else 0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in (
        "flash_attn",
        "flash_attn_interface",
        "flash_attn_config",
        "flashinfer",
        "tvm_ffi",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    # FlashInfer's neighbours
    (tmp_path / "tvm_ffi.py").touch()
    (tmp_path / "flashinfer_jit_cache.py").touch()
    yield Site(tmp_path, monkeypatch)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


FAULTS = {
    "undefined symbol": (
        "raise ImportError('flash.so: undefined symbol:\\n _ZN3c105Error')",
        "is installed but cannot be loaded: ImportError: flash.so: undefined symbol: _ZN3c105Error",
    ),
    "missing shared object": (
        "raise OSError('libcudart.so.12: cannot open shared object file')",
        "is installed but cannot be loaded: OSError: libcudart.so.12: cannot open shared object",
    ),
    "missing dependency": (
        "import einops_of_another_world",
        "is installed but cannot be loaded: ModuleNotFoundError: No module named 'einops_of",
    ),
    "refuses this torch": (
        "raise RuntimeError('built for torch 2.6')",
        "is installed but cannot be loaded: RuntimeError: built for torch 2.6",
    ),
    "missing function": ("", "has no {call}; "),
    "missing argument": (
        "def {call}(q=None): pass",
        "does not take our call of {call} (got an unexpected keyword argument",
    ),
    "no signature": ("{call} = min", "does not take our call of {call} (no signature"),
}


@LIBRARIES
@pytest.mark.parametrize("fault", FAULTS)
def test_auto_passes_over_a_library_of_no_use_and_says_why(
    package: Package, fault: str, site: Site
) -> None:
    source, reason = (text.format(call=package.first_call) for text in FAULTS[fault])
    site.set_chip(package.chip)
    site.install(package, source)
    reason = f"{package.distribution} 9.8.7 {reason}"
    choice = choose("auto", SHAPES, None, GPU)
    assert choice.backend.name in ("triton_paged", "torch_paged")
    assert reason in choice.passed_over[package.backend]

    config = AttentionConfig(backend=package.backend)
    with pytest.raises(BackendError) as caught:
        choose_backends(config, SHAPES, package.block_size, GPU)
    message = str(caught.value)
    assert message.startswith(f"attention.backend: {package.backend} cannot serve this model here")
    assert reason in message
    for name in examine_all(SHAPES, None, GPU):
        assert f"\n  {name}: " in message

    pair = AttentionConfig(prefill_backend=package.backend, decode_backend="torch_paged")
    with pytest.raises(BackendError, match=r"^attention.prefill_backend: ") as caught:
        choose_backends(pair, SHAPES, package.block_size, GPU)
    assert reason in str(caught.value)
    assert site.loads(package) == 1  # of all these questions


@pytest.mark.parametrize(
    ("package", "source", "reason"),
    [
        (FA2, FA2.good.replace(", flash_attn_varlen_func", ""), "no flash_attn_varlen_func"),
        (
            FA2,
            f"{FA2.good}\ndef flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k,"
            " max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, window_size=(-1, -1),"
            " block_table=None): pass",
            "'softcap'); FlashAttention 2.6 or newer is needed",
        ),
        (
            FI,
            f"{FI.good}\nclass BatchDecodeWithPagedKVCacheWrapper("
            "BatchDecodeWithPagedKVCacheWrapper):\n    workspace_size = property()",
            "our call of BatchDecodeWithPagedKVCacheWrapper.workspace_size (",
        ),
        (
            FI,
            f"{FI.good}\nclass BatchPrefillWithPagedKVCacheWrapper("
            "BatchPrefillWithPagedKVCacheWrapper):\n    def run(self, q, paged_kv_cache): pass",
            "our call of BatchPrefillWithPagedKVCacheWrapper.run (got an unexpected keyword "
            "argument 'out'); FlashInfer 0.7 or newer is needed",
        ),
    ],
    ids=["one function", "one argument", "no method", "a method's argument"],
)
def test_every_call_is_checked(package: Package, source: str, reason: str, site: Site) -> None:
    site.set_chip(package.chip)
    site.install(package, source)
    with pytest.raises(BackendChoiceError) as caught:
        choose(package.backend, SHAPES, package.block_size, GPU)
    assert reason in str(caught.value)


@LIBRARIES
def test_a_good_one_is_taken(package: Package, site: Site) -> None:
    site.set_chip(package.chip)
    site.install(package)
    choice = choose("auto", SHAPES, None, GPU)
    assert choice.backend.name == package.backend
    assert choice.block_size == package.block_size
    assert site.loads(package) == 1


def test_nothing_is_loaded_for_another_chip_or_shape(site: Site) -> None:
    for package in (FA2, FA3, FI):
        site.install(package)
    examine_all([make_shape((4, 2), 64, torch.float32)], None, GPU)
    site.set_chip((7, 5))
    examine_all(SHAPES, None, GPU)
    assert [site.loads(package) for package in (FA2, FI)] == [0, 0]
    site.set_chip(ADA)
    examine_all(SHAPES, None, GPU)
    assert [site.loads(package) for package in (FA2, FA3, FI)] == [1, 0, 1]


def test_a_version_without_metadata_is_named_by_its_module(site: Site) -> None:
    (site.folder / "flash_attn.py").write_text("raise ImportError('of a source build')")
    importlib.invalidate_caches()
    reason = examine_all(SHAPES, 256, GPU)["flash_attention"].reason
    assert "flash_attn is installed but cannot be loaded: ImportError: of a source build" in reason


@needs_triton
def test_a_broken_triton_is_passed_over(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch_paged` is left."""
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "attention_backends._triton_kernels", raising=False)
    site.install(TRITON, "raise ImportError('libtriton.so: wrong ELF class')")
    choice = choose("auto", SHAPES, None, GPU)
    assert choice.backend.name == "torch_paged"
    reason = choice.passed_over["triton_paged"]
    assert "triton 9.8.7 is installed but cannot be loaded: ImportError: libtriton.so" in reason


@pytest.mark.parametrize(
    ("chip", "installed", "chosen"),
    [
        (HOPPER, (FA2, FA3, FI), "flash_attention"),
        (HOPPER, (FA2, FI), "flash_infer"),
        (ADA, (FA2, FA3, FI), "flash_infer"),
        (BLACKWELL, (FA2, FI), "flash_infer"),
        (ADA, (FA2,), "flash_attention"),
    ],
    ids=lambda value: "+".join(p.module for p in value) if isinstance(value[0], Package) else None,
)
def test_version_3_goes_before_flash_infer_and_version_2_behind_it(
    chip: tuple[int, int], installed: tuple[Package, ...], chosen: str, site: Site
) -> None:
    site.set_chip(chip)
    for package in installed:
        site.install(package)
    assert choose("auto", SHAPES, None, GPU).backend.name == chosen


def test_a_broken_version_3_leaves_the_place_to_flash_infer(site: Site) -> None:
    site.set_chip(HOPPER)
    site.install(FA2)
    site.install(FA3, "raise OSError('libcudart.so.13')")
    site.install(FI)
    assert choose("auto", SHAPES, None, GPU).backend is flash_infer.Backend
    order = list(examine_all(SHAPES, None, GPU))
    assert order.index("flash_infer") < order.index("flash_attention")
