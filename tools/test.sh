#!/usr/bin/env bash
# Format, lint, types and tests, in a .venv of its own making. Arguments are passed to pytest.
#
#   tools/test.sh            everything
#   tools/test.sh --quick    the same checks, and of the tests those that belong to what changed
#                            (tools/changed_tests.py), as many as begin within 40 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/_venv.sh

QUICK_S=40
is_quick=
if [ "${1-}" = --quick ]; then
  is_quick=yes
  shift
fi

prepare_venv test
say "ruff format"
"$VENV_PYTHON" -m ruff format --check --quiet .
say "ruff check"
"$VENV_PYTHON" -m ruff check --quiet .
say "mypy"
"$VENV_PYTHON" -m mypy
if [ -n "$is_quick" ]; then
  say "pytest, of what changed"
  chosen=$("$VENV_PYTHON" -m tools.changed_tests)
  # shellcheck disable=SC2086  # a path a line, without spaces
  STEPGRAPH_TEST_BUDGET_S=$QUICK_S exec "$VENV_PYTHON" -m pytest --numprocesses auto \
    --dist loadfile --no-loadscope-reorder --quiet "$@" $chosen
fi
say "pytest"
exec "$VENV_PYTHON" -m pytest --numprocesses auto --dist loadfile "$@"
