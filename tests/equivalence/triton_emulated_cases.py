"""`triton_paged` in Triton's interpreter, under emulated capture: tokens equal torch_paged's.

`test_triton_emulated.py` runs this file in a process of its own, where the interpreter is chosen.
"""

import os

import pytest

from runtime import Runtime, RuntimeConfig
from tests.builders import write_config

assert os.environ.get("TRITON_INTERPRET") == "1", "run through test_triton_emulated.py"
GREEDY = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
PROMPTS = [[5, 6, 7], [9] * 11, [5, 6, 7, 8, 9, 10, 11, 12, 13]]


def run(folder, backend, decode, mixed):
    config = RuntimeConfig(
        model={"path": str(folder), "format": "dummy", "max_model_len": 32},
        scheduler={"max_num_batched_tokens": 8, "max_num_seqs": 3},
        cache={"num_blocks": 32, "block_size": 4},
        attention={"backend": backend},
        graphs={"decode": decode, "mixed": mixed, "sizes": [2, 8]},
        engine={"check_integrity": True},
    )
    with Runtime(config) as runtime:
        results = runtime.generate(PROMPTS, GREEDY)
        return [r.token_ids for r in results], runtime.stats()


@pytest.mark.parametrize(
    ("decode", "mixed"), [("emulated", "emulated"), ("emulated", "emulated_ragged")]
)
def test_captured_equals_eager(tmp_path, decode, mixed):
    folder = write_config(tmp_path)
    expected, _ = run(folder, "torch_paged", "eager", "eager")
    assert run(folder, "triton_paged", "eager", "eager")[0] == expected
    tokens, stats = run(folder, "triton_paged", decode, mixed)
    assert tokens == expected
    assert stats.step_kinds["decode"] > 0
    assert stats.step_kinds["segmented" if mixed == "emulated" else "ragged"] > 0
