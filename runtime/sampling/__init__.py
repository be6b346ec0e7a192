"""From logits to tokens."""

from runtime.sampling.sampler import Sampler, SamplerOutput

__all__ = ["Sampler", "SamplerOutput"]
