"""The sampler's slow twin: one row at a time, float64, plain Python over sorted lists."""

from __future__ import annotations

import math

import numpy as np

from runtime.data.params import SamplingParams
from runtime.sampling.noise import stream_of_seed, uniform


def kept_tokens(logits: np.ndarray, p: SamplingParams) -> list[tuple[int, float]]:
    """(token, probability) of the tokens that may be drawn, in the order of the draw."""
    v = len(logits)
    x = [float(value) / p.temperature for value in logits]
    largest = max(x)
    weights = [math.exp(value - largest) for value in x]
    truncated = 0 < p.top_k < v or p.top_p < 1 or p.min_p > 0
    order = list(range(v))
    if truncated:
        order.sort(key=lambda i: (-x[i], i))
    if 0 < p.top_k < v:
        order = order[: p.top_k]
    order = [i for i in order if weights[i] >= p.min_p]
    if p.top_p < 1:
        mass, kept, limit = 0.0, [], p.top_p * math.fsum(weights[i] for i in order)
        for i in order:
            kept.append(i)
            mass += weights[i]
            if mass >= limit:
                break
        order = kept
    total = math.fsum(weights[i] for i in order)
    return [(i, weights[i] / total) for i in order]


def sample_row(logits: np.ndarray, p: SamplingParams, position: int) -> int:
    """The token of one row whose params have a seed; `logits` are biased, penalised and masked."""
    logits = np.asarray(logits, np.float64)
    if p.is_greedy:
        return int(np.argmax(logits))
    logits = np.where(np.isinf(logits), -1e300, logits)
    u = uniform(np.array([stream_of_seed(p.seed)], np.uint64), np.array([position]))[0]
    cum = 0.0
    for token, probability in kept_tokens(logits, p):
        cum += probability
        if cum > u:
            return token
    raise AssertionError("probabilities do not add up to 1")


def edited_logits(
    logits: np.ndarray,
    p: SamplingParams,
    prompt: list[int],
    output: list[int],
    ends: set[int],
    bad: list[list[int]],
) -> np.ndarray:
    """Logits after masks, bias and penalties, token by token."""
    x = [float(value) for value in logits]
    for token in range(len(x)):
        if p.allowed_token_ids is not None and token not in p.allowed_token_ids:
            x[token] = -math.inf
        for word in bad:
            if word[-1] == token and output[len(output) - len(word) + 1 :] == word[:-1]:
                x[token] = -math.inf
        if len(output) < p.min_tokens and token in ends:
            x[token] = -math.inf
        x[token] += (p.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in output:
            rise = x[token] > 0
            x[token] *= 1 / p.repetition_penalty if rise else p.repetition_penalty
        count = output.count(token)
        x[token] -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
    return np.array(x)
