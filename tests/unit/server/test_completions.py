"""/v1/completions over a tiny model: what is asked is what is done."""

import json

import pytest

PATH = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def complete(live, **body):
    answer = live.post(PATH, {**GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(answer):
    return [choice["text"] for choice in answer["choices"]]


def joined(events):
    """Choice number -> its text, over a stream."""
    found = {}
    for event in events:
        for choice in event["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def test_a_whole_answer(live):
    answer = complete(live, prompt="hello", model="tiny")
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tiny"
    [choice] = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert len(choice["text"]) > 0
    cached = answer["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert 0 <= cached < 5
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


def test_a_stream_is_the_whole_answer_in_parts(live):
    whole = complete(live, prompt=["hello", "world"], n=2, temperature=1, seed=3)
    events = live.events(
        PATH, {**GREEDY, "prompt": ["hello", "world"], "n": 2, "seed": 3, "temperature": 1}
    )
    assert joined(events) == dict(enumerate(texts(whole)))
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] == "length"]
    assert sorted(ends) == [0, 1, 2, 3]
    assert len(events) > 4
    assert len({event["id"] for event in events}) == 1


def test_token_ids_and_texts_are_the_same_prompt(live):
    ids = list(b"hello")
    assert texts(complete(live, prompt=ids)) == texts(complete(live, prompt="hello"))
    assert texts(complete(live, prompt=[ids, ids])) == 2 * texts(complete(live, prompt="hello"))


def test_the_second_time_a_prompt_is_cached(live):
    prompt = "a prompt that nobody else has sent here"
    complete(live, prompt=prompt)
    usage = complete(live, prompt=prompt)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 32
    usage = complete(live, prompt=prompt, cache_salt="mine")["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_echo_comes_before_the_output(live):
    plain = texts(complete(live, prompt=["hello", "x"], n=2))
    echoed = texts(complete(live, prompt=["hello", "x"], n=2, echo=True))
    assert echoed == [f"{p}{t}" for p, t in zip(["hello", "hello", "x", "x"], plain, strict=True)]
    streamed = live.events(PATH, {**GREEDY, "prompt": list(b"hello"), "echo": True})
    assert joined(streamed)[0] == echoed[0]


def test_echo_alone_scores_a_prompt(live):
    answer = complete(live, prompt="hello", echo=True, max_tokens=0, logprobs=1)
    [choice] = answer["choices"]
    assert choice["text"] == "hello"
    assert choice["logprobs"]["tokens"] == list("hello")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert all(logprob < 0 for logprob in others)
    assert answer["usage"]["completion_tokens"] == 0


def test_logprobs_of_the_output(live):
    answer = complete(live, prompt="hello", logprobs=3)
    logprobs = answer["choices"][0]["logprobs"]
    assert [len(logprobs[name]) for name in sorted(logprobs)] == [8] * 4
    for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert own == max(top.values())  # greedy
        assert len(top) <= 3
    streamed = live.events(PATH, {**GREEDY, "prompt": "hello", "logprobs": 3})
    parts = [e["choices"][0]["logprobs"]["token_logprobs"] for e in streamed]
    assert [x for part in parts for x in part] == logprobs["token_logprobs"]


@pytest.mark.case("SV09")
def test_what_json_cannot_write_is_finite(live):
    answer = live.post(
        PATH, {"prompt": "x", "max_tokens": 4, "top_k": 1, "logprobs": 5, "temperature": 1}
    )
    assert answer.status_code == 200
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.case("SV13")
def test_what_is_accepted_is_done(live):
    free = complete(live, prompt="hello", max_tokens=40)
    text = free["choices"][0]["text"]
    stop = text[5]
    stopped = complete(live, prompt="hello", max_tokens=40, stop=[stop])["choices"][0]
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["finish_reason"] == "stop"
    assert len(complete(live, prompt="hello", n=2)["choices"]) == 2
    seeded = [complete(live, prompt="hello", temperature=1, seed=s) for s in (5, 5, 6)]
    assert texts(seeded[0]) == texts(seeded[1]) != texts(seeded[2])
    biased = complete(live, prompt="hello", logit_bias={"65": 100}, max_tokens=3)
    assert texts(biased) == ["AAA"]
    only = complete(live, prompt="hello", allowed_token_ids=[66], max_tokens=3)
    assert texts(only) == ["BBB"]
    fair = complete(
        live, prompt="x", logit_bias={"65": 100, "66": 99}, max_tokens=4, frequency_penalty=2
    )
    assert texts(fair)[0].count("B") >= 1


@pytest.mark.parametrize(
    ("form", "allowed"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "a{3}"}}, {"aaa"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": [1, 2]}},
                }
            },
            {"1", "2"},
        ),
    ],
)
def test_structured_output(live, form, allowed):
    pytest.importorskip("llguidance")
    answer = complete(live, prompt="x", max_tokens=30, ignore_eos=False, **form)
    assert answer["choices"][0]["text"].strip() in allowed
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.case("SV11")
def test_usage_is_a_chunk_of_its_own(live):
    body = {**GREEDY, "prompt": "hello"}
    *parts, last = live.events(PATH, {**body, "stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert all(part["usage"] is None for part in parts)
    for options in ({}, {"stream_options": {"include_usage": False}}):
        events = live.events(PATH, {**body, **options})
        assert all(event["choices"] for event in events)
        assert all("usage" not in event for event in events)


@pytest.mark.case("SV17")
def test_one_sample_that_stops_leaves_the_other_running(live):
    body = {"prompt": "x", "n": 2, "temperature": 1, "max_tokens": 60, "seed": 1, "logprobs": 0}
    whole = complete(live, **body)
    ids = [c["logprobs"]["tokens"] for c in whole["choices"]]
    stop = next(t for t in ids[0][:20] if t not in ids[1] and t.isascii() and t.isprintable())
    events = live.events(
        PATH, {**body, "ignore_eos": True, "stop": stop, "stream_options": {"include_usage": True}}
    )
    ends = {
        c["index"]: c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]
    }
    assert ends == {0: "stop", 1: "length"}
    assert events[-1]["usage"]["completion_tokens"] == ids[0].index(stop) + 1 + 60


def test_a_request_keeps_the_name_that_its_client_gave(live):
    answer = live.post(PATH, {"prompt": "x"}, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    for bad in ("x" * 200, "\u00e9"):
        answer = live.post(PATH, {"prompt": "x"}, headers={"X-Request-Id": bad.encode("latin-1")})
        assert answer.headers["x-request-id"] not in ("", bad)
