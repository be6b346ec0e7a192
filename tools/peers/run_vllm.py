"""vLLM (CPU). usage: run_vllm.py MODEL_HF_DIR [workload...]"""

import os
import sys
import time

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="4",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)
from workloads import NAMES, report, workload

if __name__ == "__main__":
    from vllm import LLM, SamplingParams, TokensPrompt

    begun = time.perf_counter()
    llm = LLM(
        sys.argv[1],
        dtype="bfloat16",
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        enable_prefix_caching=True,
    )
    print(f"vllm ready in {time.perf_counter() - begun:.1f} s")

    def run(requests):
        start = time.perf_counter()
        out = llm.generate(
            [TokensPrompt(prompt_token_ids=p) for p, _ in requests],
            [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n) for _, n in requests],
            use_tqdm=False,
        )
        seconds = time.perf_counter() - start
        assert all(
            len(o.outputs[0].token_ids) == n for o, (_, n) in zip(out, requests, strict=True)
        )
        return seconds

    run(workload("decode")[:4])
    for name in sys.argv[2:] or NAMES:
        llm.reset_prefix_cache()
        report("vllm", name, workload(name), run(workload(name)))
