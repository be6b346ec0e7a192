"""The five workloads every runtime is measured on: lists of (prompt token ids, output tokens)."""

import random

NAMES = ["single", "decode", "prefill", "mixed", "prefix"]


def workload(name: str) -> list[tuple[list[int], int]]:
    """Return the requests of one workload; the same on every call."""
    rng = random.Random(0)

    def ids(n: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(n)]

    if name == "single":  # one stream
        return [(ids(128), 128)]
    if name == "decode":  # 32 streams, short prompts
        return [(ids(32), 128) for _ in range(32)]
    if name == "prefill":  # 32 long prompts, one token each
        return [(ids(512), 1) for _ in range(32)]
    if name == "mixed":  # 64 requests, 32..512 in, 16..64 out
        return [(ids(rng.randint(32, 512)), rng.randint(16, 64)) for _ in range(64)]
    if name == "prefix":  # 64 requests that share 448 of 512 prompt tokens
        shared = ids(448)
        return [(shared + ids(64), 16) for _ in range(64)]
    raise ValueError(f"unknown workload {name!r}; one of {NAMES}")


def report(system: str, name: str, requests, seconds: float) -> None:
    """Print one line: seconds, output tokens/s and total tokens/s."""
    n_in = sum(len(p) for p, _ in requests)
    n_out = sum(n for _, n in requests)
    out, total = n_out / seconds, (n_in + n_out) / seconds
    print(
        f"{system:12s} {name:8s} {seconds:8.3f} s  out {out:9.1f} tok/s  total {total:9.1f} tok/s",
        flush=True,
    )
