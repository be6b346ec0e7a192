"""Which tokens run in each step: policy on plain numbers, no tensors."""

from runtime.scheduler.scheduler import Scheduler
from runtime.scheduler.stats import SchedulerStats

__all__ = ["Scheduler", "SchedulerStats"]
