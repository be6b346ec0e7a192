import json

import numpy as np
import pytest

from runtime.errors import ConfigError
from runtime.workbench.dataset_files import read_arrivals, read_jsonl, read_trace

FLAG = "--dataset-path"


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "in.jsonl"
        text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def requests(dataset, count):
    return dataset.requests(count, range(100), np.random.default_rng(0))


def test_jsonl_is_what_generate_reads(file):
    path = file({"prompt": "a", "max_tokens": 3}, "", {"messages": [{"role": "user"}]})
    dataset = read_jsonl(path, FLAG, {"ignore_eos": True})
    first, second = requests(dataset, 2)
    assert (first.prompt, first.sampling) == ("a", {"max_tokens": 3, "ignore_eos": True})
    assert second.chat == [{"role": "user"}]
    assert requests(dataset, 1) == [first]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["", " "], "has no request"),
        ([{"prompt": "a"}, "{"], r"in\.jsonl:2: no valid JSON"),
        ([{"prompt": "a", "max_token": 3}], r"in\.jsonl:1: max_token: unknown"),
        (["[1]"], "must be a JSON object with prompt"),
    ],
)
def test_a_line_that_is_no_request_is_one_error(file, lines, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_jsonl(file(*lines), FLAG, {})
    assert str(caught.value).startswith(FLAG)


@pytest.mark.parametrize("read", [read_arrivals, lambda p, f: read_jsonl(p, f, {})])
def test_a_file_that_cannot_be_read(read, tmp_path):
    with pytest.raises(ConfigError, match=f"{FLAG} .*nowhere: cannot be read: No such file"):
        read(str(tmp_path / "nowhere"), FLAG)
    (tmp_path / "wide").write_text("{}", encoding="utf-16")
    with pytest.raises(ConfigError, match="UTF-16 and must be in UTF-8"):
        read(str(tmp_path / "wide"), FLAG)


def test_a_trace_keeps_lengths_order_and_shared_blocks(file):
    line = {"input_length": 1100, "output_length": 7, "timestamp": 30, "hash_ids": [1, 2, 3]}
    path = file(
        line,
        {**line, "timestamp": 10, "input_length": 600, "hash_ids": [1, 9]},
        {"timestamp": 20.5, "input_length": 5, "output_length": 1},
    )
    trace = read_trace(path, FLAG, {"top_k": 3})
    assert [x.time_s for x in trace.lines] == [0.01, 0.0205, 0.03]
    found = requests(trace, 3)
    assert [len(r.token_ids) for r in found] == [600, 5, 1100]
    assert found[0].token_ids[:512] == found[2].token_ids[:512]
    assert found[0].token_ids[512:] != found[2].token_ids[512:600]
    assert found[2].sampling == {
        "top_k": 3,
        "temperature": 0.0,
        "max_tokens": 7,
        "ignore_eos": True,
    }


def test_a_trace_with_few_hash_ids_is_filled_up(file):
    line = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4]}
    assert len(requests(read_trace(file(line), FLAG, {}), 1)[0].token_ids) == 600


GOOD = {"timestamp": 1, "input_length": 2, "output_length": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": None}, "timestamp: must be a number of milliseconds >= 0, got None"),
        ({"timestamp": -1}, "timestamp: must be"),
        ({"timestamp": True}, "timestamp: must be"),
        ({"input_length": 0}, "input_length: must be an integer >= 1, got 0"),
        ({"output_length": 1.5}, "output_length: must be an integer"),
        ({"hash_ids": ["a"]}, "hash_ids: must be a list of integers"),
    ],
)
def test_a_line_that_is_no_trace_names_itself(file, change, message):
    with pytest.raises(ConfigError, match=rf"{FLAG} .*in\.jsonl:2: {message}"):
        read_trace(file(GOOD, {**GOOD, **change}), FLAG, {})


def test_arrivals_alone_need_only_timestamps(file):
    assert read_arrivals(file({"timestamp": 2000}, {"timestamp": 500}), FLAG) == (0.5, 2.0)
    with pytest.raises(ConfigError, match="has no line"):
        read_arrivals(file(""), FLAG)
