"""OpenVINO GenAI continuous batching. usage: run_openvino.py MODEL_OV_DIR [workload...]"""

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from workloads import NAMES, report, workload

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_batched_tokens = 2048
scheduler.max_num_seqs = 64
scheduler.enable_prefix_caching = True
scheduler.dynamic_split_fuse = True
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler_config=scheduler, device="CPU")


def run(requests):
    inputs = [ov.Tensor(np.array([p], dtype=np.int64)) for p, _ in requests]
    configs = []
    for _, n in requests:
        c = genai.GenerationConfig()
        c.max_new_tokens, c.ignore_eos, c.do_sample = n, True, False
        configs.append(c)
    start = time.perf_counter()
    results = pipeline.generate(inputs, configs)
    seconds = time.perf_counter() - start
    assert all(len(r.m_generation_ids[0]) == n for r, (_, n) in zip(results, requests, strict=True))
    return seconds


run(workload("decode")[:2])
for name in sys.argv[2:] or NAMES:
    report("openvino", name, workload(name), run(workload(name)))
