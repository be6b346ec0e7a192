"""Sizes as people write them, and model paths that name no machine."""

import os
import sys

import pytest

from runtime.config import ModelConfig, format_memory, parse_memory, resolve_model_path
from runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("1.5KiB", 1536),
        ("512MiB", 512 << 20),
        ("2TB", 2 * 10**12),
        ("1kB".upper(), 1000),
        ("7B", 7),
        (7, 7),
    ],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "4", "4gib", "4Gi", "-1GiB", "GiB", "1e3B", 0, -1, "0B", True]
)
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="must be bytes >= 1"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_for_people(size, text):
    assert format_memory(size) == text


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "some_model"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (folder / "m.gguf").write_text("x")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_file_inside_a_package(package):
    assert resolve_model_path("package:some_model/m.gguf") == str(package / "m.gguf")
    assert ModelConfig(path="package:some_model/m.gguf").path == str(package / "m.gguf")
    assert "some_model" not in sys.modules


def test_a_file_that_the_package_lacks_is_left_to_the_loader(package):
    assert resolve_model_path("package:some_model/gone") == str(package / "gone")


def test_a_package_that_is_not_installed():
    with pytest.raises(ConfigError, match=r"^model.path: .*'no_such_model' is not installed.*pip"):
        ModelConfig(path="package:no_such_model/m.gguf")


@pytest.mark.parametrize("path", ["package:", "package:/m.gguf", "package:a.b/m", "package:../x/m"])
def test_what_is_no_package(path):
    with pytest.raises(ValueError, match="must be package:NAME/FILE"):
        resolve_model_path(path)


def test_home_is_expanded_and_all_else_is_kept():
    assert resolve_model_path("~/m") == os.path.expanduser("~/m")
    assert resolve_model_path("some/../m.gguf") == "some/../m.gguf"
