"""stepgraph on the same work.

usage: run_stepgraph.py MODEL [workload...]   (a Hugging Face folder or a .gguf file)
STEPGRAPH_* variables change the configuration, such as STEPGRAPH_MODEL__QUANTIZATION=int8.
"""

import sys
import time

from workloads import NAMES, report, workload

from runtime import Runtime
from runtime.config import load_run_config


def make_runtime(model: str) -> Runtime:
    sets = [
        f"model.path={model}",
        "model.dtype=bfloat16",
        "model.max_model_len=2048",
        "scheduler.max_num_batched_tokens=2048",
        "scheduler.max_num_seqs=64",
        "cache.memory=2GiB",
    ]
    return Runtime(load_run_config(None, sets)[0])


def run(runtime: Runtime, requests: list[tuple[list[int], int]]) -> float:
    """Seconds to run the requests, all queued at once, on an empty prefix cache."""
    runtime.reset_prefix_cache()
    params = [{"temperature": 0.0, "ignore_eos": True, "max_tokens": n} for _, n in requests]
    start = time.perf_counter()
    results = runtime.generate([p for p, _ in requests], params)
    seconds = time.perf_counter() - start
    assert all(r.num_output_tokens == n for r, (_, n) in zip(results, requests, strict=True))
    return seconds


def main() -> None:
    begun = time.perf_counter()
    with make_runtime(sys.argv[1]) as runtime:
        print(f"stepgraph ready in {time.perf_counter() - begun:.1f} s", flush=True)
        run(runtime, workload("decode")[:4])
        for name in sys.argv[2:] or NAMES:
            report("stepgraph", name, workload(name), run(runtime, workload(name)))


if __name__ == "__main__":
    main()
