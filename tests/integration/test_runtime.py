"""The Python API on the real model: what a program that embeds the runtime relies on."""

import math

import numpy as np
import pytest

from runtime import Runtime, RuntimeConfig, SamplingParams
from runtime.errors import EngineError, ModelError, RequestError
from runtime.text import TextStream
from tests.conftest import SMOLLM2

GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def make_runtime(**sections):
    sections.setdefault("cache", {"num_blocks": 128, "block_size": 4})
    return Runtime(
        RuntimeConfig(
            model={"path": SMOLLM2, "dtype": "float32", "max_model_len": 128},
            engine={"check_integrity": True},
            **sections,
        )
    )


@pytest.fixture(scope="module")
def shared(smollm2_path):
    with make_runtime() as runtime:
        yield runtime


@pytest.fixture
def runtime(shared):
    """The shared runtime, empty again after each test."""
    assert not shared.has_unfinished()
    yield shared
    assert not shared.has_unfinished()
    assert shared.stats().num_running == shared.stats().num_waiting == 0
    assert shared.stats().blocks_used == 0


def test_results_come_in_the_order_of_the_prompts_with_counts_and_times(runtime):
    prompts = ["Once upon a time", CHAT, [1, 2, 3]]
    params = [{**GREEDY, "max_tokens": n} for n in (9, 3, 6)]
    results = runtime.generate(prompts, params)
    assert [r.num_output_tokens for r in results] == [9, 3, 6]
    assert [r.num_prompt_tokens for r in results] == [len(r.prompt_token_ids) for r in results]
    assert results[0].prompt == "Once upon a time"
    assert "capital of France" in results[1].prompt
    assert results[2].prompt is None
    assert results[2].prompt_token_ids == (1, 2, 3)
    for result in results:
        assert result.finish_reason == "length"
        assert result.stop_reason is None
        assert result.error is None
        timing = result.timing
        assert 0 <= timing.queue_s <= timing.ttft_s <= timing.e2e_s
        assert len(timing.itl_s) == result.num_output_tokens - 1
        mean_gap_s = (timing.e2e_s - timing.ttft_s) / (result.num_output_tokens - 1)
        assert timing.tpot_s == pytest.approx(mean_gap_s)


def test_a_single_prompt_gives_a_single_result(runtime):
    assert len(runtime.generate("Hello", GREEDY)) == 1
    assert len(runtime.generate(CHAT, GREEDY)) == 1
    assert len(runtime.generate([1, 2, 3], GREEDY)) == 1
    assert runtime.generate([], GREEDY) == []


def test_numpy_ids_are_taken(runtime):
    [a] = runtime.generate([np.array([5, 6, 7])], GREEDY)
    [b] = runtime.generate([[5, 6, 7]], GREEDY)
    assert a.token_ids == b.token_ids


def test_streamed_deltas_join_to_the_result(runtime):
    prompts = ["The largest ocean is", CHAT]
    texts, ids, finished = {}, {}, {}
    for delta in runtime.stream(prompts, GREEDY):
        texts[delta.request_id] = texts.get(delta.request_id, "") + delta.text
        ids[delta.request_id] = ids.get(delta.request_id, ()) + delta.token_ids
        if delta.finished:
            finished[delta.request_id] = delta.finished
    expected = runtime.generate(prompts, GREEDY)
    assert [r.text for r in expected] == list(texts.values())
    assert [r.token_ids for r in expected] == list(ids.values())
    assert [r.text for r in finished.values()] == list(texts.values())


def test_leaving_the_stream_aborts_its_request_and_no_other(runtime):
    other = runtime.add_request("Two plus two is", params=GREEDY)
    for number, _ in enumerate(runtime.stream("Once upon a time", {**GREEDY, "max_tokens": 100})):
        if number == 3:
            break
    seen = []
    while runtime.has_unfinished():
        seen += runtime.step()
    assert {d.request_id for d in seen} == {other}
    assert seen[-1].finished.finish_reason == "length"


def test_abort_gives_a_last_delta_with_what_was_generated(runtime):
    request_id = runtime.add_request("Once upon a time", params={**GREEDY, "max_tokens": 100})
    runtime.step()
    runtime.step()
    runtime.abort(request_id)
    runtime.abort(request_id)
    runtime.abort("unknown")
    [last] = runtime.step()
    assert last.finished.finish_reason == "abort"
    assert len(last.finished.token_ids) == 2


def test_abort_before_the_first_step(runtime):
    request_id = runtime.add_request("Once upon a time", params=GREEDY)
    runtime.abort(request_id)
    [last] = runtime.step()
    assert last.finished.finish_reason == "abort"
    assert last.finished.token_ids == ()
    assert last.finished.timing.ttft_s is None


@pytest.mark.case("DT01")
def test_a_stop_string_cuts_the_text_and_ends_the_request(runtime):
    [whole] = runtime.generate("Once upon a time", {**GREEDY, "max_tokens": 40})
    stop = whole.text[20:27]
    [cut] = runtime.generate("Once upon a time", {**GREEDY, "max_tokens": 40, "stop": [stop]})
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.num_output_tokens < whole.num_output_tokens


@pytest.mark.case("DT17")
def test_a_stop_token_is_in_token_ids_and_hidden_from_the_text(runtime):
    [whole] = runtime.generate("Once upon a time", GREEDY)
    stop = whole.token_ids[5]
    first = whole.token_ids.index(stop)
    [cut] = runtime.generate("Once upon a time", {**GREEDY, "stop_token_ids": [stop]})
    assert cut.token_ids == whole.token_ids[: first + 1]
    assert whole.text.startswith(cut.text)
    assert len(cut.text) < len(whole.text)
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_eos_ends_a_chat(runtime):
    [result] = runtime.generate(CHAT, {"temperature": 0.0, "max_tokens": 60})
    assert result.finish_reason == "stop"
    assert result.stop_reason is None
    assert "Paris" in result.text
    assert "<|im_end|>" not in result.text
    assert result.token_ids[-1] in runtime.spec.eos_token_ids


@pytest.mark.case("SA03")
def test_n_samples_have_their_own_index_text_and_end(runtime):
    params = {"temperature": 1.0, "seed": 7, "n": 4, "max_tokens": 8, "ignore_eos": True}
    [result] = runtime.generate("Once upon a time", params)
    assert [o.index for o in result.outputs] == [0, 1, 2, 3]
    assert len({o.token_ids for o in result.outputs}) > 1
    assert all(len(o.token_ids) == 8 for o in result.outputs)
    assert [o.text for o in runtime.generate("Once upon a time", params)[0].outputs] == [
        o.text for o in result.outputs
    ]
    deltas = list(runtime.stream("Once upon a time", params))
    for index in range(4):
        mine = [d for d in deltas if d.index == index]
        assert "".join(d.text for d in mine) == result.outputs[index].text
        assert [d.finish_reason for d in mine].count("length") == 1
    assert sum(d.finished is not None for d in deltas) == 1


def test_seeded_draws_do_not_depend_on_the_batch(runtime):
    seeded = {"temperature": 0.9, "seed": 42, "max_tokens": 10, "ignore_eos": True}
    other = {"temperature": 1.2, "max_tokens": 10, "ignore_eos": True}
    [alone] = runtime.generate("The weather today", seeded)
    first, _ = runtime.generate(["The weather today", "Other"], [seeded, other])
    _, _, third = runtime.generate(
        ["Other", "More of others", "The weather today"], [other, other, seeded]
    )
    assert alone.token_ids == first.token_ids == third.token_ids


BAD = [
    ("prompt", {"prompt": ""}),
    ("token_ids", {"token_ids": [1, 2, -1]}),
    ("token_ids", {"token_ids": [1, 10**6]}),
    ("token_ids", {"token_ids": [1, 2.5]}),
    ("token_ids", {"token_ids": [True]}),
    ("prompt", {"token_ids": []}),
    ("prompt", {"token_ids": [1] * 128}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": "a", "chat": CHAT}),
    ("prompt", {}),
    ("chat", {"chat": []}),
    ("chat", {"chat": [{"role": "user"}]}),
    ("max_tokens", {"prompt": "a", "params": {"max_tokens": 0}}),
    ("temperature", {"prompt": "a", "params": {"temperature": math.nan}}),
    ("temperature", {"prompt": "a", "params": {"temperature": -1.0}}),
    ("top_p", {"prompt": "a", "params": {"top_p": 0.0}}),
    ("top_p", {"prompt": "a", "params": {"top_p": 1.5}}),
    ("top_p", {"prompt": "a", "params": {"top_p": "0.9"}}),
    ("max_tokens", {"prompt": "a", "params": {"max_tokens": 2**64, "min_tokens": 2**64}}),
    ("min_tokens", {"prompt": "a", "params": {"max_tokens": 2, "min_tokens": 3}}),
    ("repetition_penalty", {"prompt": "a", "params": {"repetition_penalty": 1e-300}}),
    ("repetition_penalty", {"prompt": "a", "params": {"repetition_penalty": 1e300}}),
    ("structured_output", {"prompt": "a", "params": {"structured_output": {"choice": 5}}}),
    (
        "structured_output",
        {"prompt": "a", "params": {"structured_output": {"json": {"$ref": "#/$defs/missing"}}}},
    ),
    ("temprature", {"prompt": "a", "params": {"temprature": 1.0}}),
    ("stop_token_ids", {"prompt": "a", "params": {"stop_token_ids": [10**6]}}),
]


@pytest.mark.parametrize(("field", "request_"), BAD, ids=[f"{i}-{b[0]}" for i, b in enumerate(BAD)])
def test_bad_requests_name_the_field_and_harm_nobody(runtime, field, request_):
    good = runtime.add_request("Two plus two is", params=GREEDY)
    runtime.step()
    with pytest.raises(RequestError) as caught:
        runtime.add_request(**request_)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    results = []
    while runtime.has_unfinished():
        results += [d.finished for d in runtime.step() if d.finished]
    assert [r.request_id for r in results] == [good]
    assert results[0].finish_reason == "length"


def test_one_bad_prompt_of_many_runs_nothing(runtime):
    before = runtime.stats().steps
    with pytest.raises(RequestError):
        runtime.generate(["fine", "", "fine too"], GREEDY)
    assert runtime.stats().steps == before


@pytest.mark.case("SC13")
def test_a_prompt_one_token_below_the_limit_gives_one_token(runtime):
    long, short = runtime.generate([[7] * 127, "Hello"], GREEDY)
    assert (long.num_output_tokens, long.finish_reason) == (1, "length")
    assert short.num_output_tokens == 12


@pytest.mark.case("PC03")
def test_a_failed_step_ends_its_requests_and_caches_nothing(runtime, monkeypatch):
    runtime.reset_prefix_cache()
    [expected] = runtime.generate([list(range(40, 60))], GREEDY)
    runtime.reset_prefix_cache()
    launch = runtime.engine.runner.launch

    def fail_once(so):
        monkeypatch.setattr(runtime.engine.runner, "launch", launch)
        raise RuntimeError("planted")

    monkeypatch.setattr(runtime.engine.runner, "launch", fail_once)
    [failed] = runtime.generate([list(range(40, 60))], GREEDY)
    assert failed.finish_reason == "error"
    assert "planted" in failed.error
    [again] = runtime.generate([list(range(40, 60))], GREEDY)
    assert again.num_cached_tokens == 0
    assert again.token_ids == expected.token_ids


@pytest.mark.case("PC13", "SA11")
def test_non_finite_logits_end_that_request_and_no_other(runtime, monkeypatch):
    runtime.reset_prefix_cache()
    prompts = [list(range(40, 60)), list(range(80, 100)), list(range(120, 140))]
    expected = runtime.generate(prompts, GREEDY)
    runtime.reset_prefix_cache()
    model = runtime.engine.runner._model
    compute = model.compute_logits

    def poisoned(hidden):
        logits = compute(hidden).clone()
        if len(logits) == 3:
            logits[1, 5] = math.nan
        return logits

    monkeypatch.setattr(model, "compute_logits", poisoned)
    results = runtime.generate(prompts, GREEDY)
    assert [r.finish_reason for r in results] == ["length", "error", "length"]
    assert "logits" in results[1].error
    assert results[0].token_ids == expected[0].token_ids
    assert results[2].token_ids == expected[2].token_ids
    monkeypatch.undo()
    [again] = runtime.generate([prompts[1]], GREEDY)
    assert again.num_cached_tokens == 0
    assert again.token_ids == expected[1].token_ids


def test_non_finite_keys_and_values_do_not_outlive_their_request(runtime):
    runtime.reset_prefix_cache()
    runner = runtime.engine.runner
    request_id = runtime.add_request(token_ids=list(range(40, 60)), params=GREEDY)
    runtime.step()
    held = runtime._outputs.live[request_id].samples[0].request.block_ids
    runner.kv[3].v[held] = math.nan
    while runtime.has_unfinished():
        last = runtime.step()[-1]
    assert last.finished.finish_reason == "error"
    runtime.generate([list(range(90, 96))], {**GREEDY, "max_tokens": 1})
    assert all(bool(t.isfinite().all()) for kv in runner.kv for t in kv)


@pytest.mark.case("PC07")
def test_a_salt_separates_tenants(runtime):
    prompt = list(range(200, 220))
    runtime.reset_prefix_cache()
    hits = [
        runtime.generate([prompt], GREEDY, cache_salt=salt)[0] for salt in ("a", "a", "b", None)
    ]
    assert [r.num_cached_tokens > 0 for r in hits] == [False, True, False, False]
    assert len({r.token_ids for r in hits}) == 1


def test_an_interrupt_leaves_the_runtime_usable(runtime, monkeypatch):
    launch = runtime.engine.runner.launch

    def interrupt(so):
        monkeypatch.setattr(runtime.engine.runner, "launch", launch)
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime.engine.runner, "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runtime.generate("Hello", GREEDY)
    runtime.step()
    assert runtime.generate("Hello", GREEDY)[0].finish_reason == "length"


def test_two_runtimes_in_a_process_do_not_disturb_each_other(runtime):
    prompt = "The largest ocean is"
    [expected] = runtime.generate(prompt, GREEDY)
    with make_runtime(cache={"num_blocks": 40, "block_size": 16}) as other:
        ids = [r.add_request(prompt, params=GREEDY) for r in (runtime, other)]
        done = {}
        while runtime.has_unfinished() or other.has_unfinished():
            for r, request_id in zip((runtime, other), ids, strict=True):
                done.update({id(r): d.finished for d in r.step() if d.request_id == request_id})
    assert [r.token_ids for r in done.values()] == [expected.token_ids] * 2


def test_the_error_of_a_list_says_which_prompt(runtime):
    with pytest.raises(RequestError, match="item 1 of the 3 given"):
        runtime.generate(["ok", "", "ok"], GREEDY)


def test_generators_of_prompts_are_taken(runtime):
    results = runtime.generate((text for text in ["Hello", "World"]), GREEDY)
    assert [r.prompt for r in results] == ["Hello", "World"]


@pytest.mark.parametrize("params", ["greedy", 5])
def test_params_of_another_kind_are_refused(runtime, params):
    with pytest.raises(RequestError) as caught:
        runtime.generate("Hello", params)
    assert caught.value.field == "params"


def test_the_sampling_of_a_run_file_is_the_default_of_its_runtime(tmp_path, smollm2_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: '{SMOLLM2}', max_model_len: 64}}\n"
        "sampling: {temperature: 0, max_tokens: 5, ignore_eos: true}\n"
    )
    with Runtime.from_yaml(str(path), {"cache.num_blocks": 16}) as rt:
        first, second = rt.generate(["Once upon", "Once upon"])
        assert first.token_ids == second.token_ids
        assert first.num_output_tokens == 5
        assert rt.generate("Once", {"max_tokens": 2})[0].num_output_tokens == 2
        assert rt.settle_params(SamplingParams()).max_tokens == 16


def test_a_missing_model_is_told_as_a_missing_model(tmp_path):
    with pytest.raises(ModelError, match=r"model\.path: .*nope does not exist"):
        Runtime(RuntimeConfig(model={"path": str(tmp_path / "nope")}))


def test_a_truncated_gguf_is_told_as_damaged(tmp_path, smollm2_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_path.read_bytes()[:1_000_000])
    with pytest.raises(ModelError, match=r"cut\.gguf") as caught:
        Runtime(RuntimeConfig(model={"path": str(path), "cache_dir": str(tmp_path / "cache")}))
    assert "tokenizer" not in str(caught.value)


def test_from_yaml_with_overrides(tmp_path, smollm2_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model:\n  path: {SMOLLM2}\n  max_model_len: 64\nscheduler: {{max_num_seqs: 4}}\n"
    )
    with Runtime.from_yaml(
        str(path), {"scheduler.max_num_seqs": 2, "model.dtype": "float32"}
    ) as rt:
        assert rt.config.scheduler.max_num_seqs == 2
        assert rt.max_model_len == 64
        assert rt.generate("Hi", SamplingParams(temperature=0, max_tokens=2))[0].num_output_tokens


@pytest.mark.parametrize("caching", [True, False])
def test_samples_share_the_prompt_whether_or_not_prefixes_are_cached(smollm2_path, caching):
    prompt = list(range(300, 341))
    params = {**GREEDY, "n": 4, "max_tokens": 2, "prompt_logprobs": 0}
    with make_runtime(
        cache={"num_blocks": 64, "block_size": 4, "prefix_caching": caching}
    ) as runtime:
        [result] = runtime.generate([prompt], params)
        assert len({o.token_ids for o in result.outputs}) == 1
        assert result.num_cached_tokens == 0
        assert runtime.stats().scheduled_tokens == 41 + 3 + 4
        assert len(result.prompt_logprobs) == 41
        again = runtime.generate([prompt], GREEDY)[0]
        assert again.num_cached_tokens == (40 if caching else 0)


def test_a_stream_that_is_never_iterated_leaves_nothing_behind(runtime):
    stream = runtime.stream(["Once", "Twice"], {**GREEDY, "max_tokens": 100})
    assert runtime.has_unfinished()
    del stream
    assert not runtime.engine.has_unfinished()


def test_text_that_cannot_be_made_ends_its_request_alone(runtime, monkeypatch):
    push = TextStream.push

    def fail_on_bad(self, token_id, is_stop=False):
        if self._params_marker == 5:
            raise UnicodeError("planted")
        return push(self, token_id, is_stop)

    init = TextStream.__init__

    def mark(self, tokenizer, prompt_ids, params):
        init(self, tokenizer, prompt_ids, params)
        self._params_marker = params.max_tokens

    monkeypatch.setattr(TextStream, "__init__", mark)
    monkeypatch.setattr(TextStream, "push", fail_on_bad)
    bad, good = runtime.generate(["Hello", "Hello"], [{**GREEDY, "max_tokens": 5}, GREEDY])
    assert bad.finish_reason == "error"
    assert "planted" in bad.error
    assert (good.finish_reason, good.num_output_tokens) == ("length", 12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "high"),
        ("priority", None),
        ("cache_salt", 5),
        ("cache_salt", "\ud800"),
        ("request_id", "\ud800"),
        ("request_id", 7),
    ],
)
def test_fields_that_the_scheduler_could_not_use_are_refused(runtime, field, value):
    with pytest.raises(RequestError) as caught:
        runtime.add_request("Hello", **{field: value})
    assert caught.value.field == field
    assert not runtime.has_unfinished()


def test_ids_are_free_again_after_the_end_and_never_taken_twice(runtime):
    runtime.add_request("Hello", request_id="x", params={**GREEDY, "n": 2})
    for taken in ("x", "x#1"):
        with pytest.raises(RequestError, match="already in use"):
            runtime.add_request("Hello", request_id=taken)
    runtime.abort("x")
    assert runtime.step()[-1].finished.finish_reason == "abort"
    assert runtime.add_request("Hello", request_id="x#1", params=GREEDY) == "x#1"
    runtime.add_request("Hello", request_id="req-99999", params=GREEDY)
    runtime.abort("x#1")
    runtime.abort("req-99999")
    runtime.step()


def test_a_closed_runtime_says_so(smollm2_path):
    runtime = make_runtime()
    runtime.close()
    runtime.close()
    assert not runtime.has_unfinished()
    with pytest.raises(EngineError, match="closed"):
        runtime.generate("Hello")
