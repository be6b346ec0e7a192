"""The torch modes through which a recorder sees a forward: Python calls, and the ops under them."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class CallWatch(TorchFunctionMode):
    """Base of what sees calls into torch, and into functions that announce themselves to it."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder


class OpWatch(TorchDispatchMode):
    """Base of what sees the ops."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here; torch would import its compiler, for a second and more, to keep it
        away."""
        return False

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder
