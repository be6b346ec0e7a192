"""llama.cpp through its low-level batch API, with a plain continuous-batching loop.

usage: run_llamacpp.py MODEL.gguf [workload...]
"""

import sys
import time

import llama_cpp as llama
import numpy as np
from workloads import NAMES, report, workload

BATCH = 2048
silent = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(silent, None)
llama.llama_backend_init()
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
params = llama.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 64 * 640, BATCH, 512, 64
params.n_threads = params.n_threads_batch = 2
params.kv_unified, params.flash_attn_type = False, 1
context = llama.llama_init_from_model(model, params)
memory = llama.llama_get_memory(context)
vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def run(requests):
    llama.llama_memory_clear(memory, True)
    batch = llama.llama_batch_init(BATCH, 0, 1)
    states = [{"prompt": p, "want": n, "done": 0, "out": []} for p, n in requests]
    start = time.perf_counter()
    while True:
        used, sampled = 0, []
        for seq, s in enumerate(states):
            if len(s["out"]) >= s["want"] or used == BATCH:
                continue
            tokens = (
                [s["out"][-1]]
                if s["done"] >= len(s["prompt"])
                else s["prompt"][s["done"] : s["done"] + BATCH - used]
            )
            for k, token in enumerate(tokens):
                batch.token[used], batch.pos[used], batch.n_seq_id[used] = token, s["done"] + k, 1
                batch.seq_id[used][0], batch.logits[used] = seq, 0
                used += 1
            s["done"] += len(tokens)
            if s["done"] >= len(s["prompt"]):
                batch.logits[used - 1] = 1
                sampled.append((s, used - 1))
        if used == 0:
            return time.perf_counter() - start
        batch.n_tokens = used
        assert llama.llama_decode(context, batch) == 0
        for s, row in sampled:
            logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, row), shape=(vocab,))
            s["out"].append(int(logits.argmax()))


run(workload("decode")[:2])
for name in sys.argv[2:] or NAMES:
    report("llama.cpp", name, workload(name), run(workload(name)))
