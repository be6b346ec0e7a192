"""From logits to tokens."""

from runtime.sampling.checks import check_params, with_seed
from runtime.sampling.sampler import PendingSample, Sampler, SamplerOutput
from runtime.sampling.structured import Grammars

__all__ = [
    "Grammars",
    "PendingSample",
    "Sampler",
    "SamplerOutput",
    "check_params",
    "with_seed",
]
