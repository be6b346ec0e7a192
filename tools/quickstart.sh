#!/usr/bin/env bash
# From nothing to generated text: makes .venv, installs, fetches the demo model, runs it.
# Arguments are passed on: bash tools/quickstart.sh --chat "Why is the sky blue?"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/_venv.sh

prepare_venv structured,server
exec "$VENV/bin/stepgraph" generate --config configs/quickstart.yaml "$@"
