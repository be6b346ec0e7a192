"""The table of `bench_peers.py --files`."""

from __future__ import annotations

from pathlib import Path

from tools._peer_files import file_rows, show_files


def test_rows_hold_medians_ratios_and_bytes(tmp_path: Path, capsys) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(1000))
    rates = {
        file: {
            "single": {"stepgraph": [30.0, 10.0, 20.0], "llamacpp": [10.0]},
            "decode": {"llamacpp": [5.0]},
        }
    }
    single, decode = rows = list(file_rows(rates))
    assert (single["stepgraph"], single["llamacpp"], single["ratio"]) == (20.0, 10.0, 2.0)
    assert single["gb_per_s"] == 20 * 1000 / 1e9
    assert single["read_gb_per_s"] > 0.01
    assert "ratio" not in decode
    assert "gb_per_s" not in decode
    show_files(rows)
    said = capsys.readouterr().out
    assert "failed" in said
    assert "2.00" in said
