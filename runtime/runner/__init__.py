"""From a SchedulerOutput to the tokens it gives: request rows, the batch, the forward."""

from runtime.runner.backend import choose_backend
from runtime.runner.kv_memory import free_memory_bytes, size_kv_pool
from runtime.runner.model_runner import ModelRunner

__all__ = ["ModelRunner", "choose_backend", "free_memory_bytes", "size_kv_pool"]
