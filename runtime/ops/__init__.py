"""Operations on flat rows of tokens, in plain torch.

These are the slow twins: the reference that a faster kernel of the same name must agree with. Each
is a function of its arguments; what it writes in place is said in its docstring.
"""

from runtime.ops.activation import silu_and_mul
from runtime.ops.kv_write import write_kv
from runtime.ops.linear import Linear
from runtime.ops.norm import add_rms_norm, head_rms_norm, rms_norm
from runtime.ops.rotary import Rotation, rotary, rotation

__all__ = [
    "Linear",
    "Rotation",
    "add_rms_norm",
    "head_rms_norm",
    "rms_norm",
    "rotary",
    "rotation",
    "silu_and_mul",
    "write_kv",
]
