"""When the requests of a benchmark come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ConfigError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A process of arrivals; the first request comes at 0 s.

    Poisson and gamma gaps are scaled so that they have exactly the mean that the rate asks for:
    two seeds differ in the order of the gaps, not in the load.
    """

    kind: str = "infinite"
    """infinite (all at once), poisson, gamma, constant or trace."""
    rate: float = np.inf
    """Requests/s; counts for poisson, gamma and constant."""
    burstiness: float = 1.0
    """Shape of gamma gaps: 1 is Poisson, less is burstier, more is steadier."""
    trace_s: tuple[float, ...] = ()
    """For trace: the times, in order."""

    def times(self, count: int, rng: np.random.Generator) -> FloatArray:
        """When each of `count` requests comes, in seconds from the start.

        Raises:
            ConfigError: the trace has fewer.
        """
        if self.kind == "infinite":
            return np.zeros(count)
        if self.kind == "constant":
            return np.arange(count) / self.rate
        if self.kind == "trace":
            return self._of_trace(count)
        shape = self.burstiness if self.kind == "gamma" else 1.0
        times = np.concatenate([[0.0], np.cumsum(rng.gamma(shape, 1.0, max(0, count - 1)))])
        total = times[-1]
        return times[:count] * ((count - 1) / self.rate / total if total > 0 else 0.0)

    def _of_trace(self, count: int) -> FloatArray:
        if len(self.trace_s) < count:
            raise ConfigError(
                f"the trace has {len(self.trace_s)} arrivals, and {count} requests are to come"
            )
        times = np.array(self.trace_s[:count], float)
        return times - times[0] if count else times
