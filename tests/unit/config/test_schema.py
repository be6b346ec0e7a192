"""Strict types, unknown keys, and limits that span keys: what a Python caller sees."""

from dataclasses import fields
from pathlib import Path

import pytest

from runtime import RuntimeConfig
from runtime.config import (
    CacheConfig,
    GraphsConfig,
    ModelConfig,
    RunConfig,
    SchedulerConfig,
    blocks_for,
    check_limits,
)
from runtime.config.describe import leaf_keys
from runtime.data.params import SamplingParams
from runtime.errors import ConfigError


def config(**sections):
    sections.setdefault("model", {"path": "x"})
    return RuntimeConfig(**sections)


def message_of(**sections):
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    return str(caught.value)


def test_nested_mappings_and_sections_are_equal():
    by_mapping = RuntimeConfig(model={"path": "x"}, cache={"block_size": 4})
    by_section = RuntimeConfig(model=ModelConfig(path="x"), cache=CacheConfig(block_size=4))
    assert by_mapping == by_section


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("scheduler", "max_num_seqs", "16", 'an integer >= 1, got "16"; write 16, without quotes'),
        ("scheduler", "max_num_seqs", "1k", "write the number out: 1000 or 1024"),
        ("scheduler", "max_num_seqs", "2 M", "write the number out: 2000000 or 2097152"),
        ("scheduler", "max_num_seqs", 16.0, "got 16.0; write 16"),
        ("scheduler", "max_num_seqs", 16.5, "an integer >= 1, got 16.5"),
        ("scheduler", "max_num_seqs", True, "an integer >= 1, got true"),
        ("scheduler", "max_num_seqs", None, "an integer >= 1, got null"),
        ("scheduler", "max_num_seqs", 0, "an integer >= 1, got 0"),
        ("scheduler", "max_num_seqs", [1], r"an integer >= 1, got \[1\]"),
        ("scheduler", "chunked_prefill", "yes", 'true or false, got "yes"; write true'),
        ("scheduler", "chunked_prefill", "off", 'true or false, got "off"; write false'),
        ("scheduler", "chunked_prefill", 1, "true or false, got 1"),
        ("scheduler", "watermark", 1.0, "a number >= 0 and < 1, got 1.0"),
        ("scheduler", "watermark", float("nan"), "a number >= 0 and < 1, got nan"),
        ("scheduler", "policy", "mixd", "one of mixed, prefill_first, .*did you mean mixed?"),
        ("scheduler", "order", False, "one of fcfs, priority, got false"),
        ("cache", "block_size", "16", "an integer >= 1 or auto, .*write 16, without quotes"),
        ("cache", "block_size", 0, "an integer >= 1 or auto, got 0"),
        ("cache", "num_blocks", 0, "an integer >= 1 or null, got 0"),
        ("cache", "prefix_caching", "false", 'got "false"; write false, without quotes'),
        ("cache", "memory", 0, "must be auto or bytes >= 1"),
        ("cache", "memory", "4 gigs", "must be auto or bytes >= 1 .*4GiB"),
        ("cache", "memory", True, "must be auto or bytes >= 1"),
        ("model", "path", 8000, 'a string, got 8000; write it in quotes: "8000"'),
        ("model", "path", "", "must not be empty"),
        ("model", "tokenizer", True, 'a string or null, got true; write it in quotes: "true"'),
        ("attention", "backend", None, "a string, got null"),
        ("graphs", "sizes", "8,16", "a list of integers or auto"),
    ],
)
def test_wrong_values_say_what_to_write(section, key, value, message):
    sections = {section: {key: value}}
    if section == "model":
        sections["model"] = {"path": "x", key: value}
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: .*{message}"):
        config(**sections)


def test_an_item_of_a_list_is_named_once():
    assert message_of(graphs={"sizes": [1, "2", 4]}) == (
        'graphs.sizes[1]: must be an integer, got "2"; write 2, without quotes'
    )


@pytest.mark.case("CL05")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"scheduler": {"max_num_batched_token": 64}},
            "scheduler.max_num_batched_token: unknown key; did you mean max_num_batched_tokens?",
        ),
        ({"schedular": {}}, "schedular: unknown key; did you mean scheduler?"),
        ({"max_num_seqs": 1}, "max_num_seqs: unknown key; did you mean scheduler.max_num_seqs?"),
        (
            {"graphs": {"zzz": 1}},
            "graphs.zzz: unknown key; known keys: decode, mixed, sizes, lazy_after, "
            "check_addresses, compare_every",
        ),
        ({"cache": {1: 2}}, "cache.1: keys must be strings, got 1"),
    ],
)
def test_unknown_keys_get_a_suggestion(sections, message):
    assert message_of(**sections).replace("[1]", ".1") == message


@pytest.mark.case("CL05")
def test_a_section_on_its_own_names_the_whole_key():
    with pytest.raises(ConfigError, match=r"^scheduler\.max_seqs: unknown key"):
        SchedulerConfig(max_seqs=1)


def test_every_problem_is_reported_at_once():
    message = message_of(cache={"block_size": "4", "hsah": 1}, scheduler={"policy": "x"})
    assert message.startswith("3 problems in the configuration:\n")
    for key in ("cache.block_size: ", "cache.hsah: ", "scheduler.policy: "):
        assert f"\n  {key}" in message


@pytest.mark.parametrize("sections", [{}, {"model": {}}])
def test_a_missing_model_is_named(sections):
    with pytest.raises(ConfigError, match=r"^model\.path: missing"):
        RuntimeConfig(**sections)


def test_config_is_never_written_back():
    with pytest.raises(Exception, match="frozen"):
        config().cache.block_size = 8


@pytest.mark.case("CL01")
def test_false_stays_false():
    assert config(cache={"prefix_caching": False}).cache.prefix_caching is False


@pytest.mark.case("CL03")
def test_a_name_that_looks_like_a_boolean_is_a_name():
    assert config(model={"path": "on"}).model.path == "on"


@pytest.mark.case("CL07")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 17}},
            "scheduler.max_num_batched_tokens: must be >= scheduler.max_num_seqs = 17",
        ),
        (
            {
                "model": {"path": "x", "max_model_len": 65},
                "scheduler": {"max_num_batched_tokens": 64, "chunked_prefill": False},
            },
            "scheduler.max_num_batched_tokens: must be >= max_model_len = 65 with "
            "scheduler.chunked_prefill: false",
        ),
        (
            {
                "model": {"path": "x", "max_model_len": 65},
                "scheduler": {"max_num_batched_tokens": 64, "policy": "prefill_first"},
            },
            "scheduler.max_num_batched_tokens: must be >= max_model_len = 65 with "
            "scheduler.policy: prefill_first",
        ),
        (
            {
                "scheduler": {"policy": "prefill_first", "long_prefill_token_threshold": 8},
            },
            "scheduler.long_prefill_token_threshold: must be 0 with "
            "scheduler.policy: prefill_first",
        ),
        (
            {
                "model": {"path": "x", "max_model_len": 66},
                "cache": {"block_size": 16, "num_blocks": 4},
            },
            "model.max_model_len: must be <= 65: the KV pool has 4 blocks of 16 tokens",
        ),
    ],
)
def test_limits_that_contradict_each_other(sections, message):
    assert message_of(**sections).startswith(message)


@pytest.mark.case("CL07")
def test_limits_at_their_edges_are_allowed():
    config(scheduler={"max_num_batched_tokens": 16, "max_num_seqs": 16})
    whole = {"max_num_batched_tokens": 65, "chunked_prefill": False, "max_num_seqs": 8}
    config(model={"path": "x", "max_model_len": 65}, scheduler=whole)
    pool = {"block_size": 16, "num_blocks": 4}
    config(model={"path": "x", "max_model_len": 65}, cache=pool)


@pytest.mark.case("CL07")
def test_the_engine_checks_again_what_was_auto():
    whole = config(scheduler={"max_num_batched_tokens": 64, "chunked_prefill": False})
    check_limits(whole, 64)
    with pytest.raises(ConfigError, match=r"must be >= max_model_len = 65 with"):
        check_limits(whole, 65)
    with pytest.raises(ConfigError, match=r"model.max_model_len: must be <= 33"):
        check_limits(config(), 34, block_size=16, num_blocks=2)


@pytest.mark.parametrize(
    ("length", "block_size", "blocks"), [(1, 4, 1), (5, 4, 1), (6, 4, 2), (17, 16, 1), (18, 16, 2)]
)
def test_the_last_token_needs_no_slot(length, block_size, blocks):
    assert blocks_for(length, block_size) == blocks


@pytest.mark.case("GP05")
@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ([], "must not be empty; for no graphs, set graphs.decode and graphs.mixed to eager"),
        ([8, 1, 4, 0, -2], "must be integers >= 1, got [0, -2]"),
        ([8, 1, 4, 4, 8], "must be distinct, got [4, 8] more than once"),
        (
            [8, 4096, 9000],
            "must be <= scheduler.max_num_batched_tokens = 2048, got [4096, 9000]: no step is "
            "larger",
        ),
    ],
)
def test_sizes_that_no_bucket_can_have(sizes, why):
    assert message_of(graphs={"sizes": sizes}) == f"graphs.sizes: {why}"


def test_a_pool_has_one_size():
    message = message_of(cache={"num_blocks": 8, "memory": "1KiB"})
    assert message.startswith(
        "cache.num_blocks: must be null where cache.memory is given (1024 bytes): "
    )
    assert config(cache={"num_blocks": 8, "memory": "auto"}).cache.num_blocks == 8


def test_the_shortest_request_has_a_prompt_and_an_output():
    assert message_of(model={"path": "x", "max_model_len": 1}) == (
        "model.max_model_len: must be an integer >= 2 or auto, got 1"
    )
    assert config(model={"path": "x", "max_model_len": 2}).model.max_model_len == 2


def test_sizes_may_come_in_any_order():
    assert config(graphs={"sizes": [8, 1, 2048]}).graphs.sizes == [8, 1, 2048]
    with pytest.raises(ConfigError, match=r"^graphs\.sizes: "):
        GraphsConfig(sizes=[0])


@pytest.mark.parametrize("key", ["lazy_after", "compare_every"])
def test_counts_of_graphs_are_not_negative(key):
    assert message_of(graphs={key: -1}) == f"graphs.{key}: must be an integer >= 0, got -1"
    assert getattr(config(graphs={key: 3}).graphs, key) == 3


def test_the_readme_names_every_key():
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    keys = {".".join(key) for key in leaf_keys(RuntimeConfig)}
    assert sorted(key for key in keys if f"`{key}`" not in readme) == []


def test_the_page_on_serving_names_every_key_of_the_server():
    page = (Path(__file__).parents[3] / "docs/serving.md").read_text(encoding="utf-8")
    keys = {".".join(key) for key in leaf_keys(RunConfig) if key[0] == "server"}
    assert len(keys) == 8
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


class TestWork:
    def test_sampling_fields_are_checked(self):
        with pytest.raises(ConfigError) as caught:
            RunConfig(
                model={"path": "x"},
                sampling={"temprature": 1},
                requests=[{"prompt": "a", "sampling": {"max_tokens": 0}}],
            )
        assert str(caught.value).splitlines()[1:] == [
            "  sampling.temprature: unknown sampling field; did you mean 'temperature'?",
            "  requests[0].sampling.max_tokens: must be an integer >= 1, got 0",
        ]

    def test_a_request_is_checked_with_the_sampling_of_the_run(self):
        with pytest.raises(ConfigError, match=r"requests\[0\].sampling.min_tokens: .*= 4\]"):
            RunConfig(
                model={"path": "x"},
                sampling={"max_tokens": 4},
                requests=[{"prompt": "a", "sampling": {"min_tokens": 5}}],
            )

    def test_a_request_changes_the_sampling_of_the_run(self):
        run = RunConfig(
            model={"path": "x"},
            sampling={"max_tokens": 4, "seed": 1},
            requests=[{"prompt": "a", "sampling": {"seed": 2}}],
        )
        assert run.sampling_of(run.requests[0]) == {"max_tokens": 4, "seed": 2}

    @pytest.mark.parametrize(
        ("request_", "got"),
        [({}, "none"), ({"prompt": "a", "token_ids": [1]}, "prompt and token_ids")],
    )
    def test_a_request_has_one_input(self, request_, got):
        with pytest.raises(ConfigError, match=rf"^requests\[0\]: must have exactly .* got {got}"):
            RunConfig(model={"path": "x"}, requests=[request_])


def test_the_readme_names_every_sampling_field():
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    listed = " ".join(
        readme.partition("Sampling fields and defaults")[2].partition("\n\n")[0].split()
    )
    for field in fields(SamplingParams):
        assert f"`{field.name}`" in listed
        if isinstance(field.default, (bool, int, float)):
            assert f"`{field.name}` {str(field.default).lower().removesuffix('.0')}" in listed
