"""A step that is made while the one before runs gives the same tokens: `engine.overlap`."""

import random

import pytest

from runtime import Runtime, RuntimeConfig
from runtime.scheduler.ahead import NEEDS_BLOCKS, NEEDS_TOKENS
from tests.builders import make_hf_folder
from tests.conftest import SMOLLM2
from tests.equivalence.prompts import CHATS
from tests.equivalence.prompts import PROMPTS as TEXTS
from tests.equivalence.test_tiny import GREEDY, PROMPTS

SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 11, "max_tokens": 12, "stop_token_ids": [9]}
WHOLE = {"temperature": 1.0, "max_tokens": 40, "seed": 3}
SOME_NEED_TOKENS = [
    {**GREEDY, "repetition_penalty": 1.3},
    {**SAMPLED, "logprobs": 2},
    {**GREEDY, "logits_processors": (lambda ids, logits: logits.roll(len(ids)),)},
]
MIXES = {
    "greedy": [GREEDY],
    "sampled": [SAMPLED, {**WHOLE, "stop_token_ids": list(range(40))}],
    "samples of one prompt": [{**WHOLE, "n": 3}, {**GREEDY, "max_tokens": 3}],
    "prompt logprobs": [{**GREEDY, "prompt_logprobs": 1}, SAMPLED],
    "some need their tokens": [GREEDY, SAMPLED, *SOME_NEED_TOKENS],
    "all need their tokens": SOME_NEED_TOKENS,
}
PLACES = {
    "roomy": {},
    "small chunks": {"scheduler.max_num_batched_tokens": 11, "scheduler.max_num_seqs": 5},
    "preemption": {"scheduler.max_num_batched_tokens": 16, "cache.num_blocks": 28},
    "no cache": {
        "cache.prefix_caching": False,
        "scheduler.policy": "prefill_first",
        "scheduler.max_num_batched_tokens": 128,
    },
    "padded": {"graphs.decode": "emulated", "graphs.mixed": "emulated", "graphs.sizes": [4, 16]},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_hf_folder(tmp_path_factory.mktemp("tiny")))


def make_runtime(path, overlap, changes=None):
    sections = {
        "model": {"path": path, "max_model_len": 100},
        "scheduler": {"max_num_batched_tokens": 64, "max_num_seqs": 8},
        "cache": {"num_blocks": 400, "block_size": 4},
        "engine": {"check_integrity": True, "overlap": overlap},
    }
    for key, value in (changes or {}).items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return Runtime(RuntimeConfig(**sections))


def outcomes(results):
    return [[(o.token_ids, o.finish_reason, o.stop_reason) for o in r.outputs] for r in results]


def logprobs(results):
    """Of prompts and outputs: ids with ranks, and values, which other batches round otherwise."""
    lists = [o.logprobs or () for r in results for o in r.outputs]
    lists += [(r.prompt_logprobs or (None,))[1:] for r in results]
    entries = [entry for positions in lists for top in positions for entry in top]
    return [(e.token_id, e.rank) for e in entries], [e.logprob for e in entries]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mix", MIXES)
def test_the_same_tokens(tiny, mix, place):
    prompts = [prompt for prompt in PROMPTS if len(prompt) < 60]
    params = [MIXES[mix][i % len(MIXES[mix])] for i in range(len(prompts))]
    results, stats = {}, {}
    for overlap in (False, True):
        with make_runtime(tiny, overlap, PLACES[place]) as runtime:
            found = runtime.generate(prompts, params)
            found += runtime.generate(prompts[-2:], params[-2:])
            results[overlap], stats[overlap] = found, runtime.stats()
    assert outcomes(results[True]) == outcomes(results[False])
    (ids, values), (other_ids, other_values) = map(logprobs, results.values())
    assert ids == other_ids
    assert values == pytest.approx(other_values)
    assert stats[False].steps_ahead == 0
    reasons = stats[True].wait_reasons
    assert (NEEDS_TOKENS in reasons) == ("need" in mix)
    if "need" not in mix:
        assert stats[True].steps_ahead > 0
    if mix == "greedy":
        assert stats[True].steps_ahead > 0.6 * stats[True].steps
        assert (place == "preemption") == (stats[True].preemptions > 0) == (NEEDS_BLOCKS in reasons)
    if place != "no cache":
        assert stats[True].cached_tokens > 0


@pytest.fixture(scope="module")
def alone(tiny):
    """(prompt, params) -> the tokens of a request that has the engine to itself."""
    found = {}
    with make_runtime(tiny, False) as runtime:
        for i, prompt in enumerate(PROMPTS):
            for j, params in enumerate((GREEDY, SAMPLED, WHOLE, SOME_NEED_TOKENS[0])):
                [result] = runtime.generate([prompt], params)
                found[i, j] = result.outputs[0].token_ids
    return found


@pytest.mark.parametrize("seed", range(4))
def test_aborts_and_arrivals_at_any_moment(tiny, alone, seed):
    """Whoever is not aborted gets the tokens that it gets alone."""
    rng = random.Random(seed)
    changes = {"cache.num_blocks": 40, "scheduler.max_num_batched_tokens": 20}
    live, aborted, done, number = {}, set(), 0, 0
    with make_runtime(tiny, True, changes) as runtime:
        while number < 60 or runtime.has_unfinished():
            while number < 60 and rng.random() < 0.4:
                which = rng.randrange(len(PROMPTS)), rng.randrange(4)
                params = (GREEDY, SAMPLED, WHOLE, SOME_NEED_TOKENS[0])[which[1]]
                name = runtime.add_request(PROMPTS[which[0]], params=params)
                live[name], number = which, number + 1
            if live and rng.random() < 0.1:
                name = rng.choice(sorted(live))
                runtime.abort(name)
                aborted.add(name)
            for delta in runtime.step():
                if delta.finished is None:
                    continue
                tokens = delta.finished.outputs[0].token_ids
                expected = alone[live.pop(delta.request_id)]
                if delta.request_id in aborted:
                    assert tokens == expected[: len(tokens)]
                else:
                    assert tokens == expected
                    done += 1
        stats = runtime.stats()
    assert done > 20
    assert stats.preemptions > 0
    assert stats.steps_ahead > stats.steps // 4
    assert stats.blocks_used == 0


def test_tokens_that_the_host_settles_late_are_run_again(tiny, monkeypatch):
    """As on a GPU, where a row's head may not tell its token: here every third one."""
    expected = {}
    params = {**WHOLE, "top_p": 0.9}
    with make_runtime(tiny, True) as runtime:
        expected = outcomes(runtime.generate(PROMPTS, params))
    monkeypatch.setattr("runtime.sampling.sampler.reading_is_free", lambda device: False)
    from runtime.sampling import sampler

    from_head, calls = sampler.draw_from_head, []

    def cannot_tell(scores, index, draw_params):
        calls.append(len(index))
        tokens = from_head(scores, index, draw_params).clone()
        tokens[len(calls) % 3 :: 3] = sampler.OPEN
        return tokens

    monkeypatch.setattr(sampler, "draw_from_head", cannot_tell)
    late = []
    with make_runtime(tiny, True) as runtime:
        update = runtime.engine.scheduler.update_from_output
        monkeypatch.setattr(
            runtime.engine.scheduler,
            "update_from_output",
            lambda so, ro: late.extend(ro.late) or update(so, ro),
        )
        assert outcomes(runtime.generate(PROMPTS, params)) == expected
    assert len(late) > 50


@pytest.mark.slow
def test_the_same_answers_of_the_real_model():
    requests = [
        (TEXTS[0], {"temperature": 0, "max_tokens": 24}),
        (TEXTS[6], {"temperature": 0.8, "seed": 1, "n": 2, "max_tokens": 16}),
        (CHATS[0], {"temperature": 0, "max_tokens": 40, "stop": ["."]}),
        (CHATS[1], {"temperature": 0, "max_tokens": 12, "structured_output": {"regex": "[a-z ]+"}}),
        (TEXTS[9], {"temperature": 0.7, "top_k": 20, "seed": 2, "max_tokens": 20}),
    ]
    answers = {}
    for overlap in (False, True):
        changes = {"model.max_model_len": 256, "scheduler.max_num_batched_tokens": 48}
        with make_runtime(SMOLLM2, overlap, changes) as runtime:
            results = runtime.generate([p for p, _ in requests], [s for _, s in requests])
            answers[overlap] = [
                [(o.text, o.finish_reason, o.stop_reason) for o in r.outputs] for r in results
            ]
            stats = runtime.stats()
    assert answers[True] == answers[False]
    assert stats.steps_ahead > 0
    assert stats.wait_reasons[NEEDS_TOKENS] > 0
