"""Native kernels of the ops, for the CPU. Each has a twin in plain torch one folder up."""

from runtime.ops.native.library import NativeOps, native_ops
from runtime.ops.native.sources import STORED_KINDS, ops_source

__all__ = ["STORED_KINDS", "NativeOps", "native_ops", "ops_source"]
