#!/usr/bin/env bash
# stepgraph beside its peers on five workloads, in one run: a table, ratios last; medians of 3 rounds.
# usage: bash tools/bench_peers.sh DIR [--json F] [--chart F.svg] [--rounds N] [--systems ...] [--workloads ...]
# DIR holds a virtual environment for each peer (openvino, vllm, llamacpp, hf) and the model in its forms (model-hf,
# model-ov, model-f16.gguf); a peer that is not there is left out, with a line that says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/_venv.sh
prepare_venv ""
exec "$VENV_PYTHON" tools/bench_peers.py "$@"
