#!/usr/bin/env bash
# Format, lint, types and tests, in a .venv of its own making. Other arguments are passed to pytest.
#
#   tools/test.sh            everything
#   tools/test.sh --quick    the same checks, and of the tests those that belong to what changed
#                            (tools/changed_tests.py), as many as begin within 30 s; a .venv that
#                            can run them is taken as it is
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/_venv.sh

QUICK_S=30
CAN_TEST='import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, ("mypy", "ruff", "torch", "xdist"))))'
is_quick=
for argument in "$@"; do
  shift
  if [ "$argument" = --quick ]; then is_quick=yes; else set -- "$@" "$argument"; fi
done

if [ -z "$is_quick" ] || ! "$VENV_PYTHON" -c "$CAN_TEST" 2>/dev/null; then
  prepare_venv test
fi
if [ -n "$is_quick" ]; then
  export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # a .venv may be shared by worktrees
  say "what changed"
  chosen=$("$VENV_PYTHON" -m tools.changed_tests)
fi
say "ruff format"
"$VENV_PYTHON" -m ruff format --check --quiet .
say "ruff check"
"$VENV_PYTHON" -m ruff check --quiet .
say "mypy"
"$VENV_PYTHON" -m mypy
set -- --numprocesses auto --dist loadfile "$@"
if [ -n "$is_quick" ]; then
  say "pytest, of what changed"
  export STEPGRAPH_TEST_BUDGET_S=$QUICK_S
  STEPGRAPH_TEST_CHANGED=$("$VENV_PYTHON" -m tools.changed_tests --changed)
  export STEPGRAPH_TEST_CHANGED
  # shellcheck disable=SC2086  # a path a line, without spaces
  exec "$VENV_PYTHON" -m pytest --no-loadscope-reorder --quiet "$@" $chosen
fi
say "pytest"
exec "$VENV_PYTHON" -m pytest "$@"
