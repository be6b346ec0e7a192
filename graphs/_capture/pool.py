"""What captured modes share: a recorder with its pool, and the buffer that every graph writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_backends import Support, is_out_of_memory
from graphs._keys import Call, GraphError, GraphKey, run_in_place
from graphs._recorders.recorder import Part, Recorder

Statics = Callable[[], Mapping[str, Tensor]]
"""Names the buffers whose addresses captured graphs rely on, as they are now."""


class _Address(NamedTuple):
    data_ptr: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Address:
        return cls(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


class _EagerPart(NamedTuple):
    """What runs between two captured regions."""

    fn: Callable[..., None]
    args: tuple[Any, ...]

    def check(self) -> None:
        """It reads what its caller gives it now."""

    def replay(self) -> None:
        self.fn(*self.args)

    def reset(self) -> None:
        """It holds no memory."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """One bucket's parts, in order: captured regions with eager ones between them."""

    key: GraphKey
    parts: tuple[Part, ...]
    addresses: Mapping[str, _Address]

    @property
    def num_segments(self) -> int:
        return sum(not isinstance(part, _EagerPart) for part in self.parts)

    def reset(self) -> None:
        for part in self.parts:
            part.reset()


class CapturePool:
    """Captures and replays; one recorder, and one output buffer [max_tokens, hidden].

    Graphs share memory, so that each one's intermediate values die at the next replay of any of
    them. That is why a graph ends with a copy into the output buffer, which lies outside.
    """

    def __init__(self, recorder: Recorder, resources: Resources) -> None:
        assert resources.num_warm_ups >= 1, "the first warm-up tells the output's shape"
        self._recorder = recorder
        self._max_tokens = resources.max_tokens
        self._num_warm_ups = resources.num_warm_ups
        self._statics = resources.statics
        self._check = resources.check_addresses
        self._output: Tensor | None = None
        self._graphs: list[CapturedGraph] = []

    def capture(self, key: GraphKey, call: Call, *, breaks: bool) -> CapturedGraph:
        """Capture the call for the key.

        Args:
            key: the bucket.
            call: the forward over the bucket's buffers, with a harmless batch in them.
            breaks: whether cuts end segments; otherwise everything is one region.

        Raises:
            GraphError: names the bucket and the reason.
        """
        try:
            with self._recorder.session(), torch.inference_mode():
                for _ in range(self._warm_ups()):
                    self._output_for(key, call(run_in_place))
                assert self._output is not None
                parts = self._record(call, self._output[: key.num_tokens], breaks)
        except Exception as error:
            if not is_out_of_memory(error):
                raise GraphError(f"capture of {key} failed: {error}") from error
            raise GraphError(f"out of memory while capturing {key}. {error}") from error
        statics = self._statics() if self._statics else {}
        addresses = {name: _Address.of(tensor) for name, tensor in statics.items()}
        graph = CapturedGraph(key, tuple(parts), addresses)
        self._graphs.append(graph)
        return graph

    def replay(self, graph: CapturedGraph) -> Tensor:
        """[T, hidden], valid until the next replay of any graph.

        Raises:
            GraphError: with checks on, when a buffer has moved since the capture.
        """
        if self._check:
            self._check_addresses(graph)
        with torch.inference_mode():
            for part in graph.parts:
                part.check()
            self._recorder.prepare_replay()
            for part in graph.parts:
                part.replay()
        assert self._output is not None
        return self._output[: graph.key.num_tokens]

    def memory_bytes(self) -> int:
        """See `Recorder.memory_bytes`."""
        return self._recorder.memory_bytes()

    def close(self) -> None:
        """Drop every graph and the pool's memory; may be called twice."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._output = None
        self._recorder.reset()

    def _record(self, call: Call, output: Tensor, breaks: bool) -> list[Part]:
        recorder = self._recorder
        parts: list[Part] = []

        def cut(fn: Callable[..., None], *args: Any) -> None:
            parts.append(recorder.end())
            held = tuple(recorder.borrow(a) if isinstance(a, Tensor) else a for a in args)
            fn(*args)
            parts.append(_EagerPart(fn, held))
            recorder.begin()

        try:
            with recorder.graph():
                recorder.begin()
                output.copy_(call(cut if breaks else run_in_place))
                parts.append(recorder.end())
        except BaseException:
            for part in parts:
                part.reset()
            raise
        output.fill_(float("nan") if output.is_floating_point() else -1)
        return parts

    def _warm_ups(self) -> int:
        if self._recorder.needs_warm_ups:
            return self._num_warm_ups
        return int(self._output is None)

    def _output_for(self, key: GraphKey, hidden: Tensor) -> Tensor:
        if hidden.shape[0] != key.num_tokens:
            raise GraphError(f"the forward gave {hidden.shape[0]} rows for {key.num_tokens} tokens")
        if self._output is None:
            with torch.inference_mode(False):
                shape = (self._max_tokens, *hidden.shape[1:])
                self._output = torch.zeros(shape, dtype=hidden.dtype, device=hidden.device)
        expected = self._output[: key.num_tokens]
        if (expected.shape, expected.dtype) != (hidden.shape, hidden.dtype):
            raise GraphError(
                f"the forward gave {tuple(hidden.shape)} {hidden.dtype}, the output buffer takes "
                f"{tuple(expected.shape)} {expected.dtype}"
            )
        return expected

    def _check_addresses(self, graph: CapturedGraph) -> None:
        now = self._statics() if self._statics else {}
        for name, address in graph.addresses.items():
            if name not in now:
                raise GraphError(f"{graph.key} was captured over {name}, which is gone")
            if _Address.of(now[name]) != address:
                raise GraphError(
                    f"{name} has moved since {graph.key} was captured: the graph still reads "
                    f"{address}, the buffer is now {_Address.of(now[name])}"
                )


@dataclass(slots=True)
class Resources:
    """What the modes of one configuration are made with, and share."""

    support: Support
    """The attention backend's."""
    device: torch.device
    max_tokens: int
    """padded tokens of the largest bucket"""
    num_warm_ups: int = 2
    """eager runs before each capture: they compile, tune and allocate"""
    statics: Statics | None = None
    check_addresses: bool = False
    """compare the addresses of `statics` before each replay"""
    pools: dict[type[Recorder], CapturePool] = field(default_factory=dict)

    def pool_of(self, recorder_type: type[Recorder]) -> CapturePool:
        """The one pool of all modes with this recorder."""
        if recorder_type not in self.pools:
            self.pools[recorder_type] = CapturePool(recorder_type(self.device), self)
        return self.pools[recorder_type]
