"""Structured output: every output matches its constraint, a dead grammar ends its request alone."""

from __future__ import annotations

import builtins
import json
import re
import threading

import numpy as np
import pytest
import torch

from runtime.data.params import SamplingParams, StructuredOutput
from runtime.errors import RequestError
from runtime.sampling import Grammars, check_params
from runtime.sampling.productive import can_end
from runtime.sampling.structured import exclude
from tests.unit.sampling.helpers import Bench, ByteTokenizer
from tests.unit.sampling.test_draw import logits_of

pytest.importorskip("llguidance")

EOS = (0,)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "on": {"type": "boolean"},
    },
    "required": ["name", "size", "on"],
    "additionalProperties": False,
}
ARITHMETIC = """root ::= term ("+" term)?
term ::= [0-9] | "(" [0-9] ")"
"""


@pytest.fixture(scope="module")
def grammars(tokenizer: ByteTokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.vocab_size, EOS)


def generate(bench: Bench, tokenizer: ByteTokenizer, num_steps: int) -> list[str | None]:
    """The text of each request, None while it has not ended with EOS."""
    n, v = len(bench.rows), tokenizer.vocab_size
    start, texts = bench.num_tokens.copy(), [None] * n
    live = list(range(n))
    for step in range(num_steps):
        for i, token in zip(live, bench.step(logits_of(n, v, 2.0, step), live), strict=True):
            if token == EOS[0]:
                end = bench.num_tokens[i] - 1
                ids = bench.token_ids[bench.rows[i], start[i] : end].tolist()
                texts[i] = tokenizer.decode(ids)
        live = [i for i in live if texts[i] is None]
        if not live:
            break
    return texts


def bench_of(constraints: list[dict], grammars: Grammars, v: int, **params: object) -> Bench:
    made = [
        SamplingParams(seed=s, structured_output=c, **params) for s, c in enumerate(constraints)
    ]
    return Bench(made, v, grammars=grammars, max_len=400, eos=EOS)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]+x"}, r"[0-9]{3}-[a-f]+x"),
        ({"choice": ["yes", "no", 'a "b"\n']}, r'yes|no|a "b"\n'),
        ({"grammar": ARITHMETIC}, r"(\d|\(\d\))(\+(\d|\(\d\)))?"),
        ({"grammar": 'start: "x"+ ("é" | "z")'}, r"x+(é|z)"),
    ],
    ids=["regex", "choice", "gbnf", "lark"],
)
def test_every_output_matches(tokenizer, grammars, constraint, pattern):
    bench = bench_of([constraint] * 20, grammars, tokenizer.vocab_size)
    texts = generate(bench, tokenizer, 300)
    assert all(text is not None and re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) > 1


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["mapping", "text"])
def test_json_follows_its_schema(tokenizer, grammars, schema):
    bench = bench_of([{"json": schema}] * 30, grammars, tokenizer.vocab_size)
    done = [text for text in generate(bench, tokenizer, 390) if text is not None]
    assert len(done) >= 20  # random logits love white space; the others ran out of room
    for text in done:
        value = json.loads(text)
        assert list(value) == ["name", "size", "on"]
        assert len(value["name"]) <= 5
        assert 0 <= value["size"] <= 99
        assert isinstance(value["on"], bool)


def test_constrained_and_free_rows_do_not_disturb_each_other(tokenizer, grammars):
    v = tokenizer.vocab_size
    params = [
        SamplingParams(seed=1, structured_output={"regex": "[0-9]+"}, min_tokens=6),
        SamplingParams(seed=2),
        SamplingParams(temperature=0.0, structured_output={"choice": ["yes", "no"]}),
        SamplingParams(temperature=0.0),
    ]
    together, apart = (Bench(params, v, grammars=grammars, eos=EOS) for _ in range(2))
    for step in range(6):
        logits = logits_of(4, v, 2.0, step)
        got = together.sample(logits)
        for i in range(4):
            assert apart.sample(logits, [i]).token_ids[0] == got.token_ids[i]
            if i % 2:
                free = Bench([params[i]], v, eos=EOS)
                free.num_tokens[:] = together.num_tokens[i]
                assert free.sample(logits[[i]]).token_ids[0] == got.token_ids[i]
        assert together.step(logits) == apart.step(logits) == got.token_ids.tolist()


@pytest.mark.parametrize("wish", [{"min_tokens": 16}, {"ignore_eos": True}], ids=str)
@pytest.mark.parametrize("constraint", [{"choice": ["yes", "no"]}, {"json": SCHEMA}], ids=str)
def test_a_finished_grammar_ends_whatever_the_wish(tokenizer, grammars, wish, constraint):
    bench = bench_of([constraint] * 4, grammars, tokenizer.vocab_size, max_tokens=390, **wish)
    texts = [t for t in generate(bench, tokenizer, 390) if t is not None]
    assert texts
    assert all(t in ("yes", "no") or json.loads(t) for t in texts)


@pytest.mark.parametrize("wish", [{"min_tokens": 4}, {"ignore_eos": True}], ids=str)
def test_a_grammar_that_can_go_on_does(tokenizer, grammars, wish):
    bench = bench_of([{"regex": "[a-z]{2,12}"}] * 8, grammars, tokenizer.vocab_size, **wish)
    tokens = [[] for _ in range(8)]
    for step in range(14):
        live = [i for i in range(8) if EOS[0] not in tokens[i]]
        logits = logits_of(8, tokenizer.vocab_size, 2.0, step)
        for i, token in zip(live, bench.step(logits, live), strict=True):
            tokens[i].append(token)
    for of_one in tokens:
        assert of_one[-1] == EOS[0]
        text = tokenizer.decode(of_one[:-1])
        assert re.fullmatch("[a-z]{2,12}", text)
        assert len(of_one) - 1 >= wish.get("min_tokens", 0)
        assert len(text) == 12 or "min_tokens" in wish


def test_a_preempted_row_goes_on(tokenizer, grammars):
    v, pattern = tokenizer.vocab_size, "[a-z]{12}"
    params = SamplingParams(seed=5, structured_output={"regex": pattern})
    through = Bench([params], v, grammars=grammars, eos=EOS)
    whole = [through.step(logits_of(1, v, 2.0, step))[0] for step in range(10)]
    bench = Bench([params], v, grammars=grammars, eos=EOS)
    first = [bench.step(logits_of(1, v, 2.0, step))[0] for step in range(4)]
    bench.sampler.drop(0)
    bench.enter(0, params, [1, 2, 3], first, EOS)
    assert first + [bench.step(logits_of(1, v, 2.0, s))[0] for s in range(4, 10)] == whole


def test_prepare_is_optional_and_may_come_twice(tokenizer, grammars):
    v = tokenizer.vocab_size
    bench = bench_of([{"regex": "[0-9]+"}], grammars, v)
    logits = logits_of(1, v, 2.0)
    want = bench.sample(logits).token_ids
    bench.sampler.prepare(bench.rows, bench.num_tokens)
    bench.sampler.prepare(bench.rows, bench.num_tokens)
    assert bench.sampler.sample(logits, bench.rows, bench.num_tokens).token_ids == want
    bare = bench_of([{"regex": "[0-9]+"}], grammars, v)
    assert bare.sampler.sample(logits, bare.rows, bare.num_tokens).token_ids == want


@pytest.mark.parametrize("grammar_ids", [300, 263])
def test_a_padded_vocabulary(tokenizer, grammar_ids):
    made = Grammars(tokenizer, grammar_ids, EOS)
    params = SamplingParams(seed=1, structured_output={"regex": "[0-9]+"})
    bench = Bench([params] * 2, 300, grammars=made, num_valid_ids=tokenizer.vocab_size, eos=EOS)
    digits = [bench.step(logits_of(2, 300, 2.0, step)) for step in range(3)]
    assert all(tokenizer.decode([t]).isdigit() for row in digits for t in row if t != EOS[0])


def test_ignore_eos_goes_on_with_eos_after_the_end(tokenizer, grammars):
    v = tokenizer.vocab_size
    bench = bench_of([{"choice": ["yes"]}], grammars, v, ignore_eos=True)
    tokens = [bench.step(logits_of(1, v, 2.0, step))[0] for step in range(8)]
    end = tokens.index(EOS[0])
    assert tokenizer.decode(tokens[:end]) == "yes"
    assert set(tokens[end:]) == {EOS[0]}


def test_a_grammar_that_dies_ends_its_request_alone(tokenizer, grammars):
    v = tokenizer.vocab_size
    params = [
        SamplingParams(seed=1, structured_output={"grammar": 'start: "a" B\nB: /[^\\s\\S]/'}),
        SamplingParams(seed=2, structured_output={"regex": "[a-z]{9}"}),
    ]
    bench = Bench(params, v, grammars=grammars, eos=EOS)
    bench.step(logits_of(2, v, 2.0))
    for _ in range(2):
        out = bench.sample(logits_of(2, v, 2.0))
        assert list(out.errors) == [0]
        assert out.errors[0].startswith("structured_output: the grammar cannot go on")
        assert out.token_ids[0] == -1
        assert out.token_ids[1] >= 0


def test_a_token_that_the_grammar_does_not_know_ends_the_request(tokenizer, grammars):
    v = tokenizer.vocab_size
    bench = bench_of([{"regex": "[0-9]+"}], grammars, v)
    bench.step(logits_of(1, v, 2.0))
    bench.token_ids[0, 3] = tokenizer.encode("x")[0]
    out = bench.sample(logits_of(1, v, 2.0))
    assert out.errors[0].startswith("structured_output: ")


def test_masks_and_allowed_ids_that_share_no_token(tokenizer, grammars):
    digit = tokenizer.encode("7")[0]
    bench = bench_of(
        [{"regex": "[a-z]+"}], grammars, tokenizer.vocab_size, allowed_token_ids=(digit,)
    )
    out = bench.sample(logits_of(1, tokenizer.vocab_size, 1.0))
    assert out.errors[0].startswith("no token can be sampled")


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"regex": "[0-9"}, "unclosed character class"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": r"[^\s\S]"}, "no text matches"),
        ({"json": "{"}, "EOF"),
        ({"json": "3"}, "invalid json"),
        ({"json": {"enum": {1, 2}}}, "no JSON schema"),
        ({"json": {"type": "wat"}}, "Invalid type"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"grammar": ""}, "root"),
        ({"grammar": "root ::= nope"}, "nope"),
        ({"grammar": 'root ::= root "a"'}, "no text matches"),
        (
            {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
            "no text matches",
        ),
        ({"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}, "no text matches"),
        ({"grammar": 'root ::= "a" root'}, "no text matches"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(tokenizer, grammars, constraint, reason):
    params = SamplingParams(structured_output=constraint)
    with pytest.raises(RequestError, match=reason) as caught:
        check_params(params, tokenizer.vocab_size, tokenizer, grammars=grammars)
    assert caught.value.field == "structured_output"
    assert "<state>" not in str(caught.value)


def test_one_that_slipped_through_ends_when_it_is_sampled(tokenizer, grammars):
    v = tokenizer.vocab_size
    params = [
        SamplingParams(seed=1, structured_output={"regex": "[0-9"}),
        SamplingParams(seed=1),
    ]
    out = Bench(params, v, grammars=grammars).sample(logits_of(2, v, 1.0))
    assert list(out.errors) == [0]
    assert "unclosed" in out.errors[0]
    no_tokenizer = Bench(params, v).sample(logits_of(2, v, 1.0))
    assert no_tokenizer.errors[0].startswith("structured_output: needs the model's tokenizer")


def test_the_missing_extra_is_named(tokenizer, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    fresh = Grammars(tokenizer, tokenizer.vocab_size, EOS)
    with pytest.raises(RequestError, match="pip install"):
        fresh.check(StructuredOutput(regex="a"))


def test_a_model_without_eos_is_refused(tokenizer):
    with pytest.raises(RequestError, match="EOS"):
        Grammars(tokenizer, tokenizer.vocab_size, ()).check(StructuredOutput(regex="a"))


class NotCpu(torch.Tensor):
    """A tensor that takes the way of other devices."""

    device = torch.device("meta")


@pytest.mark.parametrize("vocab_size", [70, 100, 128, 150])
@pytest.mark.parametrize("kind", [torch.Tensor, NotCpu])
def test_masks_are_applied_low_bit_first(vocab_size, kind):
    random = torch.Generator().manual_seed(0)
    padded = torch.rand(2, 128, generator=random) < 0.5
    packed = np.packbits(padded.numpy(), axis=1, bitorder="little").view(np.int32)
    logits = logits_of(4, vocab_size, 1.0)
    want = logits.clone()
    for row, allowed in zip((3, 1), padded, strict=True):
        keeps = torch.nn.functional.pad(allowed, (0, 22))[:vocab_size]
        want[row, ~keeps] = -torch.inf
    edited = logits.clone()
    exclude(edited.as_subclass(kind), [3, 1], packed, torch.from_numpy)
    assert torch.equal(edited, want)


@pytest.mark.parametrize(
    ("grammar", "ends"),
    [
        ('start: "a" start', False),
        ('start: "a" start | "b"', True),
        ('start: x*\nx: "a" x', True),
        ('start: x+\nx: "a" x', False),
        ('start: "a" [x] "b"\nx: x', True),
        ('start: (x | "c") y{2,3}\ny: /[0-9]:|b/ y | "z" // end\nx: x', True),
        ("start: x{0,3} x~0..2\nx: x", True),
        ('start: x~2\nx: y "y:z"\ny: x', False),
        ("start: A\nA: B", True),
        ('%llguidance {}\n\n?start: x -> named\n!x.2: "a"\n  | x "b"', True),
        ('start: %json {"type": "object"}', True),
    ],
)
def test_whether_a_grammar_can_end(grammar, ends):
    assert can_end(grammar) is ends


def test_who_has_a_compiled_grammar_does_not_wait_for_another_to_compile(tokenizer, monkeypatch):
    grammars = Grammars(tokenizer, tokenizer.vocab_size, EOS)
    known = StructuredOutput(choice=["a"])
    grammars.check(known)
    begun, go_on = threading.Event(), threading.Event()
    compile_ = grammars._compile

    def slow(kind, text):
        begun.set()
        assert go_on.wait(30)
        return compile_(kind, text)

    monkeypatch.setattr(grammars, "_compile", slow)
    other = threading.Thread(target=grammars.check, args=(StructuredOutput(choice=["b"]),))
    other.start()
    assert begun.wait(30)
    asked = threading.Thread(target=grammars.check, args=(known,))
    asked.start()
    asked.join(5)
    is_waiting = asked.is_alive()
    go_on.set()
    other.join()
    assert not is_waiting
