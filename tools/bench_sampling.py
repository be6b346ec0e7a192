#!/usr/bin/env python3
"""Time per sampling step, beside plain torch and beside the floor that memory sets.

usage: bench_sampling.py [--json FILE] [--rows 1 64 256] [--vocab 151936] [--repeats 9]
                         [--threads N] [--clock wall|cpu]

ours: Sampler.sample on float32 logits, every row with the same params. torch: the usual few lines
(argmax; softmax and multinomial; topk; sort and cumsum) for the whole batch, without seeds per row.
floor: the bytes of the logits over the bandwidth of a sum, measured here: reading them once.
Logits are peaked as a language model's are, or flat (normal with deviation 3), where a nucleus
has thousands of tokens. Medians; ours and torch's runs alternate. `--clock cpu` counts the
process's CPU time, all threads together: for a machine that others use at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.data.params import SamplingParams
from runtime.data.step import NewRow
from runtime.sampling import Grammars, Sampler

PROMPT_LEN = 500
NUM_KNOWN = 600
WARM_UP = 3
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
    },
    "required": ["title", "tags", "count"],
}


class Case(NamedTuple):
    """One kind of request."""

    name: str
    params: dict[str, Any]
    plain: Callable[[Tensor, Tensor], Tensor] | None
    """(logits, counts of known tokens [rows, V]) -> tokens"""
    flat: bool = False


def draw(logits: Tensor) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


def plain_top_k(logits: Tensor, _: Tensor) -> Tensor:
    values, ids = logits.topk(50)
    return ids.gather(1, torch.multinomial(values.softmax(-1), 1))[:, 0]


def plain_top_p(logits: Tensor, _: Tensor) -> Tensor:
    values, ids = logits.sort(descending=True)
    probs = values.softmax(-1)
    probs[probs.cumsum(-1) - probs >= 0.9] = 0
    return ids.gather(1, torch.multinomial(probs, 1))[:, 0]


def plain_top_k_top_p(logits: Tensor, _: Tensor) -> Tensor:
    values, ids = logits.topk(50)
    probs = values.softmax(-1)
    probs[probs.cumsum(-1) - probs >= 0.9] = 0
    return ids.gather(1, torch.multinomial(probs, 1))[:, 0]


def plain_min_p(logits: Tensor, _: Tensor) -> Tensor:
    probs = logits.softmax(-1)
    probs[probs < 0.05 * probs.amax(-1, keepdim=True)] = 0
    return torch.multinomial(probs, 1)[:, 0]


def plain_penalties(logits: Tensor, counts: Tensor) -> Tensor:
    x = torch.where(logits > 0, logits / 1.1, logits * 1.1)
    x = torch.where(counts > 0, x, logits) - 0.2 * counts - 0.1 * (counts > 0)
    return draw(x)


def plain_logprobs(logits: Tensor, _: Tensor) -> Tensor:
    tokens = draw(logits)
    logprobs = logits.log_softmax(-1)
    logprobs.topk(5)
    chosen = logprobs.gather(1, tokens[:, None])
    (logprobs >= chosen).sum(-1)
    return tokens


CASES = (
    Case("greedy", {"temperature": 0.0}, lambda x, _: x.argmax(-1)),
    Case("temperature", {"temperature": 1.0}, lambda x, _: draw(x)),
    Case("top-k 50", {"top_k": 50}, plain_top_k),
    Case("top-p 0.9", {"top_p": 0.9}, plain_top_p),
    Case("top-p 0.9, flat", {"top_p": 0.9}, plain_top_p, flat=True),
    Case("top-k 50 + top-p 0.9", {"top_k": 50, "top_p": 0.9}, plain_top_k_top_p),
    Case("min-p 0.05", {"min_p": 0.05}, plain_min_p),
    Case(
        "penalties",
        {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        plain_penalties,
    ),
    Case("logprobs 5", {"logprobs": 5}, plain_logprobs),
)


class Bench:
    """Logits, known tokens and a sampler whose rows all have the same params."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.vocab_size = vocab_size
        self.flat = torch.randn(num_rows, vocab_size, generator=random) * 3
        self.peaked = torch.randn(num_rows, vocab_size, generator=random) * 2
        top = torch.randint(vocab_size, (num_rows, 2000), generator=random)
        self.peaked.scatter_add_(1, top, torch.linspace(14, 0, 2000).expand(num_rows, -1))
        self.token_ids = np.zeros((num_rows, NUM_KNOWN + 64), np.int32)
        known = torch.randint(vocab_size, (num_rows, NUM_KNOWN), generator=random)
        self.token_ids[:, :NUM_KNOWN] = known.numpy()
        self.counts = torch.zeros(num_rows, vocab_size).scatter_add_(
            1, known[:, PROMPT_LEN:], torch.ones(num_rows, NUM_KNOWN - PROMPT_LEN)
        )
        self.rows = np.arange(num_rows, dtype=np.int32)
        self.num_tokens = np.full(num_rows, NUM_KNOWN, np.int32)

    def sampler(
        self, of_row: Callable[[int], dict[str, Any]], grammars: Grammars | None = None
    ) -> Sampler:
        sampler = Sampler(self.vocab_size, self.token_ids, "cpu", grammars=grammars)
        prompt = 0 if grammars is None else NUM_KNOWN
        for row in self.rows.tolist():
            params = SamplingParams(seed=row, **of_row(row))
            known = self.token_ids[row, :NUM_KNOWN].tolist()
            num_prompt = prompt or PROMPT_LEN
            sampler.add(NewRow(row, str(row), known, num_prompt, 0, [], params, (0,)))
        return sampler

    def sample(self, sampler: Sampler, logits: Tensor) -> np.ndarray:
        out = sampler.sample(logits, self.rows, self.num_tokens)
        assert not out.errors, out.errors
        return out.token_ids


class Timer:
    """Medians of calls, by a clock that gives seconds."""

    def __init__(self, clock: Callable[[], float], repeats: int) -> None:
        self.now, self.repeats = clock, repeats

    def median_ms(self, *calls: Callable[[], object]) -> list[float]:
        """Of calls that take turns; the first turn does not count."""
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(self.repeats + 1):
            for call, own in zip(calls, times, strict=True):
                start = self.now()
                call()
                own.append((self.now() - start) * 1e3)
        return [statistics.median(own[1:]) for own in times]


def measure_cases(bench: Bench, timer: Timer) -> dict[str, dict[str, float]]:
    found = {}
    for case in CASES:
        logits = bench.flat if case.flat else bench.peaked
        sampler = bench.sampler(lambda _, c=case: c.params)
        ours, plain = timer.median_ms(
            lambda s=sampler, x=logits: bench.sample(s, x),
            lambda c=case, x=logits: c.plain(x, bench.counts),
        )
        found[case.name] = {"ours_ms": ours, "torch_ms": plain}
    mixed = bench.sampler(lambda row: {"top_k": 50, "top_p": 0.9, "temperature": float(row % 2)})
    (ours,) = timer.median_ms(lambda: bench.sample(mixed, bench.peaked))
    found["half greedy, half top-k + top-p"] = {"ours_ms": ours}
    return found


def measure_structured(
    bench: Bench, grammars: Grammars, timer: Timer
) -> dict[str, dict[str, float]]:
    """A JSON schema on every row, generating: the mask awaited, and the mask beside a forward."""
    waited: list[float] = []
    beside: list[float] = []
    for times in (waited, beside):
        params = {"structured_output": {"json": SCHEMA}, "top_k": 50, "top_p": 0.9}
        sampler = bench.sampler(lambda _, p=params: p, grammars)
        num_tokens = bench.num_tokens.copy()
        for _ in range(timer.repeats + WARM_UP):
            start = timer.now()
            sampler.prepare(bench.rows, num_tokens)
            if times is beside:
                time.sleep(max(0.2, 3e-3 * statistics.median(waited)))
                start = timer.now()
            out = sampler.sample(bench.peaked, bench.rows, num_tokens)
            times.append((timer.now() - start) * 1e3)
            assert not out.errors, out.errors
            bench.token_ids[bench.rows, num_tokens] = out.token_ids
            num_tokens += 1
        sampler.close()
    return {
        "structured + top-k/p, mask awaited": {"ours_ms": statistics.median(waited[WARM_UP:])},
        "structured + top-k/p, mask done": {"ours_ms": statistics.median(beside[WARM_UP:])},
    }


class BigTokenizer:
    """A byte-level vocabulary of any size, made of random syllables; nothing is ever encoded."""

    def __init__(self, vocab_size: int) -> None:
        random = np.random.default_rng(0)
        vocab = {"<eos>": 0}
        for piece in sorted(pre_tokenizers.ByteLevel.alphabet()):
            vocab[piece] = len(vocab)
        parts = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"] + ["Ġ", "er", "ing", ","]
        while len(vocab) < vocab_size:
            piece = "".join(random.choice(parts, random.integers(1, 5)))
            vocab.setdefault(piece, len(vocab))
        self.backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens(["<eos>"])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids


def bandwidth_bytes_per_ms(timer: Timer) -> float:
    x = torch.ones(1 << 27)
    (ms,) = timer.median_ms(lambda: x.sum())
    return x.numel() * 4 / ms


def show(results: dict[str, dict[str, dict[str, float]]], vocab_size: int) -> None:
    table = Table(title=f"sampling step, ms (vocabulary {vocab_size:,}, float32, CPU)")
    table.add_column("rows", justify="right")
    table.add_column("request")
    for name in ("ours", "torch", "torch / ours", "floor"):
        table.add_column(name, justify="right")
    for rows, by_case in results.items():
        for name, t in by_case.items():
            plain = t.get("torch_ms")
            ratio = "" if plain is None else f"{plain / t['ours_ms']:.1f}"
            other = "" if plain is None else f"{plain:.2f}"
            table.add_row(rows, name, f"{t['ours_ms']:.2f}", other, ratio, f"{t['floor_ms']:.2f}")
        table.add_section()
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians there too")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256], metavar="N")
    parser.add_argument("--vocab", type=int, default=151_936, metavar="V")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int, help="torch's threads; default: torch's own")
    args = parser.parse_args()
    if min(args.rows) < 1 or args.vocab < 300 or args.repeats < 1:
        parser.error("--rows and --repeats must be at least 1, --vocab at least 300")
    if args.threads:
        torch.set_num_threads(args.threads)
    timer = Timer(time.process_time if args.clock == "cpu" else time.perf_counter, args.repeats)
    bandwidth = bandwidth_bytes_per_ms(timer)
    grammars = Grammars(BigTokenizer(args.vocab), args.vocab, (0,))
    results: dict[str, dict[str, dict[str, float]]] = {}
    for num_rows in args.rows:
        bench = Bench(num_rows, args.vocab)
        found = measure_cases(bench, timer) | measure_structured(bench, grammars, timer)
        floor = num_rows * args.vocab * 4 / bandwidth
        results[str(num_rows)] = {name: t | {"floor_ms": floor} for name, t in found.items()}
    show(results, args.vocab)
    if args.json:
        rounded = {
            rows: {name: {k: round(v, 4) for k, v in t.items()} for name, t in cases.items()}
            for rows, cases in results.items()
        }
        args.json.write_text(json.dumps(rounded, indent=2) + "\n")


if __name__ == "__main__":
    main()
