"""What the kernels are compiled from: one library for all models, and one for each stored kind."""

from __future__ import annotations

from pathlib import Path

from attention_backends import NativeSource

STORED_KINDS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
)
"""Types of GGUF that are multiplied as they are stored, in lower case. Q8_0 is none of them: its
kernels are in the library of all models."""

_FOLDER = Path(__file__).parent
_FLAGS = ("-ffp-contract=fast", "-Wno-maybe-uninitialized")


def ops_source(name: str = "ops", flags: tuple[str, ...] = ()) -> NativeSource:
    """The sources of the library, to be built with `flags` in addition."""
    linears = ("linear", "linear_dot", "linear_tiles", "linear_int8", "linear_q8_0")
    names = ("elementwise", "rows", "logits", *linears, "pack", "units")
    files = tuple(_FOLDER / f"{file}.cpp" for file in names)
    return NativeSource(name, files, (*_FLAGS, *flags))


def stored_source(kind: str) -> NativeSource:
    """Those of one of `STORED_KINDS`."""
    files = (*(_FOLDER / "stored" / f"{name}.cpp" for name in ("linear", "pack")),)
    flags = (*_FLAGS, f"-I{_FOLDER}", f"-DSTEPGRAPH_KIND={kind}")
    return NativeSource(f"ops_{kind}", (*files, _FOLDER / "units.cpp"), flags)
