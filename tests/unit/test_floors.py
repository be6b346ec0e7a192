"""Who may import whom, and what each package says that it offers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.floors import FLOORS, PACKAGES, circles, violations

ROOT = Path(__file__).parents[2]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
FRONTS = [path for path, text in SOURCES.items() if "__all__" in text]


def test_imports_go_down():
    assert len(SOURCES) > 50
    assert violations(SOURCES) == []


def test_no_two_files_import_each_other():
    assert circles(SOURCES) == []
    pair = {
        "runtime/config/a.py": "from runtime.config import b",
        "runtime/config/b.py": "if X:\n    from runtime.config.a import A",
        "runtime/config/c.py": "from runtime.config.a import A",
    }
    assert circles(pair) == [("runtime.config.a", "runtime.config.b")]


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("runtime/scheduler/a.py", "import torch", "imports torch above the wall"),
        ("runtime/kv_cache/a.py", "from torch import Tensor", "imports torch above the wall"),
        ("runtime/data/step.py", "def f():\n    import torch.nn", "imports torch above the wall"),
        ("runtime/config/a.py", "if X:\n    from torch import nn", "imports torch above the wall"),
        ("runtime/scheduler/a.py", "import runtime.runner", "imports across floor 2"),
        ("runtime/runner/a.py", "from runtime.scheduler import S", "imports across floor 2"),
        ("runtime/kv_cache/a.py", "from runtime.models import m", "imports across floor 1"),
        ("runtime/ops/a.py", "from runtime.models import m", "imports across floor 1"),
        ("runtime/models/a.py", "from runtime.engine import E", "imports up"),
        ("runtime/data/step.py", "from runtime.scheduler import S", "imports up"),
        ("runtime/engine.py", "from runtime import front", "imports up"),
        ("runtime/engine.py", "from runtime import Runtime", "imports the public front"),
        ("runtime/front/api.py", "from runtime.cli.main import main", "imports up"),
        ("runtime/data/request.py", "from attention_backends import X", "imports across floor 0"),
        ("runtime/scheduler/a.py", "from graphs import X", "which needs torch"),
        ("runtime/kv_cache/a.py", "import attention_backends", "which needs torch"),
        ("attention_backends/a.py", "from runtime.errors import X", "imports the runtime"),
        ("attention_backends/a.py", "import graphs", "imports up"),
        ("graphs/a.py", "from runtime.errors import X", "imports the runtime"),
        ("graphs/a.py", "from attention_backends._interface import X", "is private"),
        ("runtime/runner/a.py", "from graphs._dispatch.buckets import B", "is private"),
        ("runtime/runner/a.py", "import triton", "outside of a backend or op"),
        ("attention_backends/a.py", "import flashinfer", "at import, not at construction"),
        ("runtime/ops/a.py", "import flash_attn.ops", "at import, not at construction"),
        ("runtime/engine.py", "from tests.builders import x", "imports tests"),
        ("runtime/cli/a.py", "from . import b", "imports are absolute"),
        ("runtime/server/a.py", "from runtime.cli.main import main", "imports the command line"),
        ("runtime/extra/a.py", "", "has no floor"),
        ("runtime/cli/a.py", "import runtime.extra", "has no floor"),
        ("attention_backends/triton.py", "", "bears the name of a library"),
    ],
)
def test_planted_violations_are_found(path, source, message):
    found = violations({path: source})
    assert len(found) >= 1, source
    assert any(message in line for line in found), found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("runtime/runner/a.py", "import torch\nfrom graphs import Kind\nimport runtime.data.step"),
        ("runtime/models/a.py", "from runtime.ops import rms_norm"),
        ("runtime/data/step.py", "from runtime.data.request import Request"),
        ("attention_backends/a.py", "def f():\n    import flashinfer"),
        ("attention_backends/_a.py", "import triton"),
        ("graphs/a.py", "from attention_backends import Support"),
        ("runtime/cli/a.py", "def f():\n    from runtime.front.api import Runtime"),
    ],
)
def test_what_is_allowed_is_let_through(path, source):
    assert violations({path: source}) == []


def test_the_torch_free_rooms_run_without_torch():
    """The import lines say so; this shows it, third parties included."""
    rooms = ["runtime.config", "runtime.data.step", "runtime.scheduler", "runtime.kv_cache"]
    code = f"import sys\nfor m in {rooms}: __import__(m)\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", FRONTS)
def test_all_says_what_there_is(path):
    declared = _declared(SOURCES[path])
    assert len(declared) == len(set(declared)), "__all__ names something twice"
    module = importlib.import_module(
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )
    missing = [name for name in declared if not hasattr(module, name)]
    assert not missing, f"__all__ names what is not there: {missing}"
    if path.endswith("__init__.py"):
        hidden = sorted(_imported_here(SOURCES[path]) - set(declared))
        assert not hidden, f"imported by the front but not in __all__: {hidden}"


def test_drift_of_all_is_found():
    source = "from a import b, c\n__all__ = ['b']\n"
    assert _imported_here(source) - set(_declared(source)) == {"c"}


def test_every_floor_has_its_room():
    """A room that is gone leaves the map."""
    rooms = {path.replace("/", ".") for path in SOURCES}
    for room in FLOORS:
        assert f"{room}.py" in rooms or f"{room}.__init__.py" in rooms, room


def _declared(source: str) -> list[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _imported_here(source: str) -> set[str]:
    """Public names that the module imports at its top, `from __future__` and modules aside."""
    return {
        alias.asname or alias.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing")
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }
