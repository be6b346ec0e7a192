import json
import os

import pytest

from runtime.errors import ConfigError
from runtime.workbench.output_file import OutputFile, as_json


def test_it_is_replaced_when_it_is_whole(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    file = OutputFile(str(path), "--json")
    assert path.read_text() == "old"

    def fail(place):
        with open(place, "w") as half:
            half.write("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        file.write(fail)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    file.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.json"], "nothing is left behind"


def test_a_link_stays_and_a_device_is_written_through(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    OutputFile(str(tmp_path / "link"), "--json").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    OutputFile("/dev/null", "--json").write_text("new")
    assert not os.path.isfile("/dev/null")


def test_what_cannot_be_written_is_told_before_the_work(tmp_path):
    with pytest.raises(ConfigError, match=r"--json .*: cannot be written: is a folder"):
        OutputFile(str(tmp_path), "--json")
    with pytest.raises(ConfigError, match=r"--json .*a/b\.json: .*there is no folder"):
        OutputFile(str(tmp_path / "a" / "b.json"), "--json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="permission denied"):
        OutputFile(str(tmp_path / "x"), "--json")


def test_json_keeps_lists_on_one_line():
    value = {"a": {"b": [1, 2], "c": "\ud800"}, "d": None, "e": {}}
    text = as_json(value)
    assert json.loads(text) == value
    assert '    "b": [1, 2],\n' in text
    with pytest.raises(ValueError, match="Out of range float"):
        as_json({"a": float("nan")})
