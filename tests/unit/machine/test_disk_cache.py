"""Folders of the disk cache are published whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runtime.config.sections import ModelConfig
from runtime.errors import ConfigError, ModelError
from runtime.machine.disk_cache import (
    cache_folder_of,
    cache_root,
    check_writable,
    is_whole,
    publish_folder,
)


def write_two_files(folder: Path) -> None:
    (folder / "small").write_text("a")
    (folder / "large").write_bytes(bytes(2 << 20))


def test_published_once(tmp_path: Path) -> None:
    target, calls = tmp_path / "a" / "b", []

    def write(folder: Path) -> None:
        calls.append(folder)
        write_two_files(folder)

    assert not is_whole(target)
    publish_folder(target, write)
    publish_folder(target, write)
    assert is_whole(target)
    assert len(calls) == 1
    assert not calls[0].exists()


@pytest.mark.parametrize(("name", "content"), [("small", b"b"), ("large", bytes(1 << 20))])
def test_a_changed_file_is_seen_and_replaced(tmp_path: Path, name: str, content: bytes) -> None:
    target = tmp_path / "t"
    publish_folder(target, write_two_files)
    (target / name).write_bytes(content)
    assert not is_whole(target)
    publish_folder(target, write_two_files)
    assert is_whole(target)


def test_what_a_killed_process_left_is_never_read_and_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".t.abc"
    stale.mkdir()
    (stale / "small").write_text("half")
    half = tmp_path / "t"
    half.mkdir()
    (half / "small").write_text("half")
    assert not is_whole(half)
    publish_folder(half, write_two_files)
    assert (half / "small").read_text() == "a"
    assert not stale.exists()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, ModelError),
        (errno.EDQUOT, ModelError),
        (errno.EROFS, ConfigError),
        (errno.EACCES, ConfigError),
        (errno.EIO, ModelError),
    ],
)
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, code: int, expected: type[Exception]
) -> None:
    def write(folder: Path) -> None:
        (folder / "small").write_text("half")
        raise OSError(code, "injected")

    with pytest.raises(expected, match=str(tmp_path)):
        publish_folder(tmp_path / "t", write)
    assert [path.name for path in tmp_path.iterdir()] == ["t.lock"]


def test_whether_a_place_can_be_written_is_told_without_a_trace(tmp_path: Path) -> None:
    check_writable(tmp_path / "not" / "yet" / "there")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the conversion cache"):
        check_writable(tmp_path / "file" / "cache")
    with pytest.raises(ModelError, match="not enough disk space"):
        check_writable(tmp_path / "cache", needed_bytes=1 << 60)


def test_other_errors_pass_through_and_leave_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "small").write_text("half")
        raise ModelError("bad tensor")

    with pytest.raises(ModelError, match="bad tensor"):
        publish_folder(tmp_path / "t", write)
    assert [path.name for path in tmp_path.iterdir()] == ["t.lock"]


def test_the_key_is_the_content(tmp_path: Path) -> None:
    config = ModelConfig(path="x", cache_dir=str(tmp_path / "cache"))
    one, copy, other = (tmp_path / name for name in ("one", "copy", "other"))
    one.write_bytes(b"abc" * 1000)
    copy.write_bytes(b"abc" * 1000)
    other.write_bytes(b"abc" * 999 + b"abd")
    assert cache_folder_of(one, config) == cache_folder_of(copy, config)
    assert cache_folder_of(one, config) != cache_folder_of(other, config)
    assert cache_folder_of(one, config).is_relative_to(cache_root(config))


def test_unreadable_sources(tmp_path: Path) -> None:
    config = ModelConfig(path="x", cache_dir=str(tmp_path))
    with pytest.raises(ModelError, match="cannot read"):
        cache_folder_of(tmp_path / "nowhere", config)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ModelError, match="is empty"):
        cache_folder_of(tmp_path / "empty", config)


def test_config_beats_environment_beats_home(monkeypatch: pytest.MonkeyPatch) -> None:
    config, silent = ModelConfig(path="x", cache_dir="/from/config"), ModelConfig(path="x")
    monkeypatch.setenv("STEPGRAPH_CACHE_DIR", "/from/environment")
    assert cache_root(config) == Path("/from/config")
    assert cache_root(silent) == Path("/from/environment")
    monkeypatch.delenv("STEPGRAPH_CACHE_DIR")
    assert cache_root(silent) == Path.home() / ".cache" / "stepgraph"
