"""transformers generate() on a padded batch. usage: run_hf.py MODEL_HF_DIR [workload...]"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM
from workloads import NAMES, report, workload

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
model.generation_config.eos_token_id = None


def run(requests):
    start = time.perf_counter()
    longest = max(len(p) for p, _ in requests)
    ids = torch.full((len(requests), longest), 2)
    mask = torch.zeros((len(requests), longest), dtype=torch.long)
    for i, (p, _) in enumerate(requests):
        ids[i, longest - len(p) :] = torch.tensor(p)
        mask[i, longest - len(p) :] = 1
    model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max(n for _, n in requests),
        do_sample=False,
        pad_token_id=2,
    )
    return time.perf_counter() - start


run(workload("decode")[:2])
for name in sys.argv[2:] or NAMES:
    report("hf", name, workload(name), run(workload(name)))
