"""A model is a file: found by its declarations, imported only when chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runtime.models import _plugins
from tests.builders import ARCHITECTURES, write_config


def test_every_architecture_has_one_file() -> None:
    found = _plugins.discover(Path(_plugins.__file__).parent)
    names = [name for plugin in found for name in plugin.architectures]
    assert sorted(names) == sorted(ARCHITECTURES)


def test_declarations_read_from_source_are_those_of_the_module() -> None:
    import importlib

    for plugin in _plugins.discover(Path(_plugins.__file__).parent):
        module = importlib.import_module(f"runtime.models.{plugin.module}")
        assert tuple(module.ARCHITECTURES) == plugin.architectures
        assert plugin.traits == module.TRAITS
        assert plugin.model_class() is module.Model


def test_a_new_file_is_found_with_no_list_to_edit(tmp_path: Path) -> None:
    (tmp_path / "_helper.py").write_text("raise RuntimeError")
    (tmp_path / "other.py").write_text(
        'raise RuntimeError("imported")\nARCHITECTURES = ("Other",)\nTRAITS = {"qk_norm": True}\n'
    )
    (plugin,) = _plugins.discover(tmp_path)
    assert plugin == _plugins.ModelPlugin("other", ("Other",), {"qk_norm": True})


def test_only_the_chosen_file_is_imported(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "Qwen2ForCausalLM")
    code = f"""
import sys, torch
from runtime.config.sections import ModelConfig
from runtime.models import load_model
load_model(ModelConfig(path={str(folder)!r}, format="dummy"), torch.device("cpu"))
names = ("llama", "mistral", "qwen2", "qwen3")
loaded = [name for name in names if "runtime.models." + name in sys.modules]
assert loaded == ["qwen2"], loaded
assert "transformers" not in sys.modules
assert "gguf" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
