import asyncio
import gc
import subprocess
import sys
import threading
from contextlib import aclosing

import pytest

from runtime import AsyncRuntime, Runtime, RuntimeConfig
from runtime.errors import EngineError, ModelError, RequestError
from runtime.front.input_processor import InputProcessor, Prepared
from tests.builders import write_config
from tests.unit.text import vocabularies

GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
LONG = {**GREEDY, "max_tokens": 200}
PROMPTS = ["hello", [7, 8, 9], "a longer prompt than the others", "x", [1] * 40]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A real runtime over a tiny model with random weights and a byte-level tokenizer."""
    folder = write_config(tmp_path_factory.mktemp("tiny"), vocab_size=300)
    vocabularies.save_folder(folder, vocabularies.byte_level().backend)
    return RuntimeConfig(
        model={"path": str(folder), "format": "dummy", "cache_dir": str(folder / "cache")},
        scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 64},
        cache={"num_blocks": 200, "block_size": 4},
        engine={"check_integrity": True, "threads": 1},
    )


@pytest.fixture(scope="module")
def expected(config):
    with Runtime(config) as runtime:
        return [(r.text, r.token_ids) for r in runtime.generate(PROMPTS, GREEDY)]


def run(coroutine):
    async def guarded():
        return await asyncio.wait_for(coroutine, timeout=60)

    return asyncio.run(guarded())


async def read(deltas):
    """Everything that a stream gives: its deltas and the result."""
    found = [delta async for delta in deltas]
    return found, found[-1].finished


async def until(condition):
    while not await condition():
        await asyncio.sleep(0.005)


async def nothing_runs(runtime):
    """Until the engine holds no request and no block."""

    async def is_so():
        stats = await runtime.stats()
        return stats.num_running == stats.num_waiting == 0

    await until(is_so)
    assert await runtime.reset_prefix_cache()


def test_many_clients_get_what_one_alone_gets(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            results = await asyncio.gather(*(runtime.generate(p, GREEDY) for p in PROMPTS * 3))
        assert [(r.text, r.token_ids) for r in results] == expected * 3
        assert all(r.finish_reason == "length" for r in results)

    run(main())


def test_joined_deltas_are_the_result(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            streams = await asyncio.gather(*(read(runtime.stream(p, GREEDY)) for p in PROMPTS))
        for (deltas, result), (text, token_ids) in zip(streams, expected, strict=True):
            assert "".join(d.text for d in deltas) == result.text == text
            assert tuple(i for d in deltas for i in d.token_ids) == result.token_ids == token_ids
            assert all(d.finished is None for d in deltas[:-1])

    run(main())


def test_clients_in_several_event_loops(config, expected):
    runtime, found, threads = AsyncRuntime(config), {}, []

    def client(number):
        async def main():
            return await asyncio.gather(*(runtime.generate(p, GREEDY) for p in PROMPTS))

        found[number] = run(main())

    for number in range(4):
        threads.append(threading.Thread(target=client, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    assert [[(r.text, r.token_ids) for r in found[n]] for n in range(4)] == [expected] * 4
    run(runtime.aclose())


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        ({"prompt": ""}, RequestError, "prompt: must not be empty"),
        ({"token_ids": [300]}, RequestError, "token_ids: position 0"),
        ({"prompt": "x", "params": {"top_p": 2.0}}, RequestError, "top_p: must be"),
        ({"chat": [{"role": "user", "content": "x"}]}, RequestError, "chat: this model has no"),
        ({"prompt": "x", "colour": "red"}, TypeError, "colour"),
    ],
)
def test_an_error_reaches_the_request_that_caused_it_alone(config, expected, request_, error, says):
    async def main():
        async with AsyncRuntime(config) as runtime:
            others = asyncio.gather(*(runtime.generate(p, GREEDY) for p in PROMPTS))
            with pytest.raises(error, match=says):
                await runtime.generate(**request_)
            with pytest.raises(error, match=says):
                await read(runtime.stream(**request_))
            assert [(r.text, r.token_ids) for r in await others] == expected
            assert runtime.error is None

    run(main())


def test_an_id_in_use_is_refused_and_the_first_request_goes_on(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            stream = runtime.stream("hello", LONG, request_id="one")
            await anext(stream)
            with pytest.raises(RequestError, match="request_id: 'one' is already in use"):
                await runtime.generate("x", request_id="one")
            _, result = await read(stream)
            assert len(result.token_ids) == LONG["max_tokens"]

    run(main())


# -- leaving ----------------------------------------------------------------------------------


def test_leaving_the_loop_aborts_the_request(config):
    async def main():
        async with AsyncRuntime(config) as runtime:
            async for delta in runtime.stream("hello", LONG):
                assert delta.finished is None
                break
            gc.collect()  # where iterators are not counted
            await nothing_runs(runtime)
            assert (await runtime.stats()).output_tokens < LONG["max_tokens"]

    run(main())


def test_closing_a_stream_aborts_the_request_at_once(config):
    async def main():
        async with AsyncRuntime(config) as runtime:
            async with aclosing(runtime.stream("hello", LONG)) as deltas:
                await anext(deltas)
            stats = await runtime.stats()  # carried out after the abort
            assert stats.num_running == stats.num_waiting == 0
            await nothing_runs(runtime)

    run(main())


def test_cancelling_a_task_aborts_its_request_and_no_other(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            other = asyncio.create_task(runtime.generate(PROMPTS[0], GREEDY))
            tasks = [asyncio.create_task(runtime.generate("x", LONG)) for _ in range(6)]

            async def has_begun():
                return (await runtime.stats()).output_tokens > 4

            await until(has_begun)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in done)
            result = await other
            assert (result.text, result.token_ids) == expected[0]
            await nothing_runs(runtime)

    run(main())


def test_abort_by_id_ends_the_stream_with_its_result(config):
    async def main():
        async with AsyncRuntime(config) as runtime:
            stream = runtime.stream("hello", LONG, request_id="one")
            await anext(stream)
            await runtime.abort("one")
            await runtime.abort("unheard of")
            _, result = await read(stream)
            assert result.finish_reason == "abort"
            assert 1 <= len(result.token_ids) < LONG["max_tokens"]

    run(main())


def test_a_loop_that_ended_leaves_no_request_behind(config):
    runtime = AsyncRuntime(config)
    kept = []

    async def begin():
        kept.append(runtime.stream("hello", {**LONG, "max_tokens": 250}))
        await anext(kept[0])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()  # without closing its asynchronous generators

    async def main():
        await nothing_runs(runtime)
        assert (await runtime.stats()).output_tokens < 250
        await runtime.aclose()

    run(main())
    kept[0].aclose().close()


# -- backpressure -----------------------------------------------------------------------------


def test_a_slow_reader_delays_nobody_and_gets_merged_deltas(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            slow = runtime.stream(PROMPTS[0], GREEDY)
            first = await anext(slow)
            results = await asyncio.gather(*(runtime.generate(p, GREEDY) for p in PROMPTS))
            assert [(r.text, r.token_ids) for r in results] == expected
            await nothing_runs(runtime)
            rest, result = await read(slow)
            assert len(rest) == 1
            assert (first.text + rest[0].text, result.token_ids) == expected[0]
            assert first.token_ids + rest[0].token_ids == expected[0][1]

    run(main())


def test_merged_deltas_keep_samples_and_logprobs_apart(config):
    async def main():
        async with AsyncRuntime(config) as runtime:
            params = {"max_tokens": 6, "n": 3, "seed": 1, "logprobs": 1, "ignore_eos": True}
            stream = runtime.stream("hello", params)
            first = await anext(stream)
            await nothing_runs(runtime)
            rest, result = await read(stream)
            deltas = [first, *rest]
            assert len(deltas) <= 6  # what was there at the first look, and what came since
            assert all(d.finished is None for d in deltas[:-1])
            for index, whole in enumerate(result.outputs):
                parts = [d for d in deltas if d.index == index]
                assert [d.finish_reason for d in parts if d.finish_reason] == ["length"]
                assert "".join(d.text for d in parts) == whole.text
                assert tuple(i for d in parts for i in d.token_ids) == whole.token_ids
                assert tuple(p for d in parts for p in d.logprobs) == whole.logprobs

    run(main())


def test_clients_wait_for_a_place_in_order(config, expected):
    peak, order = 0, []

    def make(settled):
        runtime = Runtime(settled)
        step = runtime.step

        def watched():
            nonlocal peak
            stats = runtime.stats()
            peak = max(peak, stats.num_running + stats.num_waiting)
            deltas = step()
            order.extend(d.request_id for d in deltas if d.finished)
            return deltas

        runtime.step = watched
        return runtime

    async def main():
        async with AsyncRuntime(config, max_inflight=2, make=make) as runtime:
            tasks = []
            for number, prompt in enumerate(PROMPTS * 2):
                request = runtime.generate(prompt, GREEDY, request_id=str(number))
                tasks.append(asyncio.create_task(request))
            await asyncio.sleep(0)
            tasks[5].cancel()  # it has no place yet
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results.pop(5), asyncio.CancelledError)
            wanted = [e for number, e in enumerate(expected * 2) if number != 5]
            assert [(r.text, r.token_ids) for r in results] == wanted

    run(main())
    assert peak == 2
    assert order == [str(n) for n in range(10) if n != 5]


def test_max_inflight_must_be_positive(config):
    with pytest.raises(ValueError, match="max_inflight must be >= 1, got 0"):
        AsyncRuntime(config, max_inflight=0)


# -- failures ---------------------------------------------------------------------------------


def failing(settled, place, error, calls_before):
    """A runtime whose scheduler or runner raises after some calls."""
    runtime = Runtime(settled)
    owner, name = {
        "scheduler": (runtime.engine.scheduler, "schedule"),
        "runner": (runtime.engine.runner, "launch"),
    }[place]
    whole, calls = getattr(owner, name), 0

    def broken(*args):
        nonlocal calls
        calls += 1
        if calls == calls_before + 1:
            raise error
        return whole(*args)

    setattr(owner, name, broken)
    return runtime


def test_a_crash_reaches_every_waiter_with_its_cause(config):
    cause = ZeroDivisionError("the scheduler is broken")

    async def main():
        runtime = AsyncRuntime(
            config, max_inflight=5, make=lambda c: failing(c, "scheduler", cause, 5)
        )
        tasks = [asyncio.create_task(runtime.generate("hello", LONG)) for _ in range(7)]
        tasks.append(asyncio.create_task(read(runtime.stream("hello", LONG))))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({id(outcome) for outcome in outcomes}) == 8
        later = (runtime.generate("x"), runtime.stats(), runtime.ready())
        outcomes += await asyncio.gather(*later, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, EngineError)
            assert outcome.__cause__ is cause
            assert "ZeroDivisionError: the scheduler is broken" in str(outcome)
        assert isinstance(runtime.error, EngineError)
        await runtime.aclose()

    run(main())


def test_deltas_before_a_crash_are_not_lost(config):
    async def main():
        runtime = AsyncRuntime(
            config, make=lambda c: failing(c, "scheduler", ZeroDivisionError(), 5)
        )
        found = []

        async def read_slowly():
            async for delta in runtime.stream("hello", LONG):
                found.extend(delta.token_ids)
                await asyncio.sleep(0.2)

        with pytest.raises(EngineError, match="ZeroDivisionError"):
            await read_slowly()
        assert len(found) == 5
        await runtime.aclose()

    run(main())


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(config, expected, caplog):
    async def main():
        make = lambda c: failing(c, "runner", RuntimeError("no memory"), 3)  # noqa: E731
        async with AsyncRuntime(config, make=make) as runtime:
            result = await runtime.generate("hello", GREEDY)
            assert result.finish_reason == "error"
            assert "no memory" in result.error
            result = await runtime.generate(PROMPTS[0], GREEDY)
            assert (result.text, result.token_ids) == expected[0]

    run(main())
    assert "no memory" in caplog.text


def test_a_runtime_that_cannot_start_says_so_everywhere(config, tmp_path):
    broken = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(tmp_path / "none")})}
    )

    async def main():
        with pytest.raises(ModelError, match="none"):
            async with AsyncRuntime(broken):
                pass
        runtime = AsyncRuntime(broken)
        for attempt in (runtime.ready(), runtime.generate("x"), runtime.stats()):
            with pytest.raises(ModelError, match="none"):
                await attempt
        await runtime.aclose()

    run(main())


def test_a_call_that_raises_harms_nobody(config, expected):
    async def main():
        async with AsyncRuntime(config) as runtime:
            with pytest.raises(ZeroDivisionError):
                await runtime.call(lambda _: 1 / 0)
            result = await runtime.generate(PROMPTS[0], GREEDY)
            assert (result.text, result.token_ids) == expected[0]

    run(main())


# -- closing ----------------------------------------------------------------------------------


def test_closing_ends_every_request(config):
    async def main():
        runtime = AsyncRuntime(config, max_inflight=3)
        streams = [runtime.stream("hello", LONG) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        outside = asyncio.create_task(runtime.generate("hello", LONG))
        await runtime.stats()
        await asyncio.gather(runtime.aclose(), runtime.aclose())
        for stream in streams:
            _, result = await read(stream)
            assert result.finish_reason == "abort"
        with pytest.raises(EngineError, match="the engine was closed"):
            await outside
        with pytest.raises(EngineError, match="the engine was closed"):
            await runtime.generate("hello")
        await runtime.aclose()

    run(main())


def test_a_runtime_that_nobody_closed_does_not_hang_the_process(config):
    code = (
        "import asyncio; from runtime import AsyncRuntime, RuntimeConfig\n"
        f"config = RuntimeConfig.model_validate_json({config.model_dump_json()!r})\n"
        "async def main():\n"
        "    global runtime, stream\n"
        "    runtime = AsyncRuntime(config)\n"
        "    stream = runtime.stream('hello', {'max_tokens': 200, 'ignore_eos': True})\n"
        "    print(len((await anext(stream)).token_ids))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) >= 1
    assert done.stderr == ""


def test_a_runtime_that_is_forgotten_stops_its_thread(config):
    async def main():
        runtime = AsyncRuntime(config)
        await runtime.ready()
        return runtime._engine._thread

    thread = run(main())
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_request_that_waits_outside_can_be_aborted_and_its_wait_counts(config):
    async def scenario():
        async with AsyncRuntime(config, max_inflight=1) as runtime:
            first = asyncio.create_task(runtime.generate("hello", {**GREEDY, "max_tokens": 30}))
            await asyncio.sleep(0)
            aborted = asyncio.create_task(runtime.generate("hello", LONG, request_id="b"))
            waiting = asyncio.create_task(runtime.generate("hello", GREEDY))
            await asyncio.sleep(0)
            await runtime.abort("b")
            return await asyncio.gather(first, aborted, waiting)

    first, aborted, waiting = run(scenario())
    assert first.finish_reason == "length"
    assert (aborted.finish_reason, aborted.token_ids) == ("abort", ())
    assert waiting.finish_reason == "length"
    assert waiting.timing.queue_s > 0.5 * first.timing.e2e_s


def test_a_finished_reader_does_not_end_the_next_request_of_the_same_id(config):
    async def scenario():
        async with AsyncRuntime(config) as runtime:
            old = runtime.stream("hello", {**GREEDY, "max_tokens": 1}, request_id="same")
            last = await anext(old)
            assert last.finished is not None
            new = asyncio.create_task(runtime.generate("hello", GREEDY, request_id="same"))
            await asyncio.sleep(0)
            await old.aclose()
            return await new

    assert run(scenario()).finish_reason == "length"


def test_a_panic_answers_the_client_that_caused_it(config):
    class PanicError(BaseException):
        pass

    def panic(_):
        raise PanicError("planted")

    async def scenario():
        runtime = AsyncRuntime(config)
        await runtime.ready()
        with pytest.raises(EngineError, match="planted"):
            await runtime.call(panic)
        with pytest.raises(EngineError, match="planted"):
            await runtime.generate("hello", GREEDY)
        await runtime.aclose()

    run(scenario())


def test_what_another_thread_has_prepared_is_only_queued(config, expected, monkeypatch):
    """The engine's thread neither encodes nor checks it again."""
    encoded_on = []
    encode = InputProcessor.encode

    def noted(self, *args, **kwargs):
        encoded_on.append(threading.current_thread())
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(InputProcessor, "encode", noted)

    async def main():
        async with AsyncRuntime(config) as runtime:
            inputs = await runtime.inputs()
            text, ids = inputs.encode("hello", None, None, None)
            inputs.check_ids(ids)
            prepared = Prepared(text, ids, inputs.settle_params(GREEDY))
            _, result = await read(runtime.submit(prepared, request_id="mine"))
        assert (result.text, result.token_ids) == expected[0]
        assert (result.request_id, result.prompt) == ("mine", "hello")
        assert encoded_on == [threading.current_thread()]

    run(main())


def test_a_prompt_that_is_too_long_is_told_before_it_is_queued(config):
    async def main():
        async with AsyncRuntime(config) as runtime:
            inputs = await runtime.inputs()
            with pytest.raises(RequestError, match="has 300 tokens; at most 255 fit"):
                inputs.check_ids([5] * 300)

    run(main())
