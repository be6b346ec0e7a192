#!/usr/bin/env bash
# Format, lint, types and tests, in a .venv of its own making. Arguments are passed to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/_venv.sh

prepare_venv test
say "ruff format"
"$VENV_PYTHON" -m ruff format --check --quiet .
say "ruff check"
"$VENV_PYTHON" -m ruff check --quiet .
say "mypy"
"$VENV_PYTHON" -m mypy
say "pytest"
exec "$VENV_PYTHON" -m pytest --numprocesses auto --dist loadfile "$@"
