"""Tokenizers that know more than the model's config: EOS, and tokens without an embedding."""

import json
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from runtime import RequestError, Runtime, RuntimeConfig
from runtime.cli.main import run
from runtime.front.eos import end_of_turn, with_eos
from tests.builders import write_config

TURNS = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
SPECIAL = ["<|turn|>", "<|end|>", "</s>"]
TURN, END, EOS = 256, 257, 258


def write_model(folder, *, rows=259, eos=None, generation=None, settings=None, more=()):
    """A tiny model with random weights, and a tokenizer of bytes and special tokens."""
    write_config(folder, vocab_size=rows, eos_token_id=... if eos is None else eos)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True) for t in [*SPECIAL, *more]])
    backend.save(str(folder / "tokenizer.json"))
    own = {"tokenizer_class": "PreTrainedTokenizerFast", **(settings or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    return folder


def config_of(folder):
    return RuntimeConfig(
        model={"path": str(folder), "format": "dummy", "max_model_len": 128},
        cache={"num_blocks": 64, "block_size": 8},
    )


EVERY = {"eos_token": "</s>", "chat_template": TURNS}


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({"generation": {"eos_token_id": [3, 4]}, "eos": 5, "settings": EVERY}, (3, 4)),
        ({"generation": {"temperature": 0.5}, "eos": 5, "settings": EVERY}, (5,)),
        ({"settings": EVERY}, (EOS, END)),
        ({"settings": {"eos_token": "</s>"}}, (EOS,)),
        ({"settings": {"chat_template": TURNS}}, (END,)),
        ({"settings": {"eos_token": "<|end|>", "chat_template": TURNS}}, (END,)),
        ({}, ()),
    ],
    ids=["generation", "config", "both", "eos token", "template", "the same", "none"],
)
def test_eos_comes_from_the_first_file_that_names_one(tmp_path, model, found, capsys):
    folder = write_model(tmp_path, **model)
    with Runtime(config_of(folder)) as runtime:
        assert runtime.spec.eos_token_ids == found
        for token_id in found:
            params = {"allowed_token_ids": [token_id], "max_tokens": 4}
            assert runtime.generate([[7]], params)[0].finish_reason == "stop"
        if found:
            params = {"structured_output": {"choice": ["yes"]}, "max_tokens": 9}
            pytest.importorskip("llguidance")
            assert runtime.generate("a", params)[0].text == "yes"
    sets = ["--set", "model.format=dummy", "--set", "model.max_model_len=64"]
    assert run(["check", "--model", str(folder), *sets]) == 0
    told = capsys.readouterr().out.partition("\nEOS\n")[2].partition("\n\n")[0]
    assert len(told.splitlines()) == max(1, len(found))
    for token_id in found:
        assert f"  {token_id} " in told
    assert "no file names one" in told or found


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content }} and then<|end|>{% endfor %}",
    ],
    ids=["refuses", "no answer in it", "text behind it"],
)
def test_a_template_that_ends_no_turn_by_a_token(tmp_path, template):
    folder = write_model(tmp_path, settings={"chat_template": template})
    with Runtime(config_of(folder)) as runtime:
        assert end_of_turn(runtime.tokenizer) is None


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """One token more than the embedding has rows."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, settings=EVERY, more=["<image_soft_token>"])
    with Runtime(config_of(folder)) as made:
        yield made


@pytest.mark.parametrize(
    "constraint",
    [{"choice": ["yes", "no"]}, {"regex": "[0-9]{3}"}, {"json": {"type": "boolean"}}],
    ids=str,
)
def test_structured_output_with_tokens_that_the_model_lacks(larger, constraint):
    pytest.importorskip("llguidance")
    params = {"structured_output": constraint, "max_tokens": 40, "temperature": 1.0, "n": 4}
    [result] = larger.generate("a", params)
    assert {o.finish_reason for o in result.outputs} == {"stop"}
    assert all(max(o.token_ids) < larger.spec.vocab_size for o in result.outputs)


def test_a_free_request_never_gets_such_a_token(larger):
    params = {"temperature": 2.0, "max_tokens": 100, "n": 4, "ignore_eos": True}
    [result] = larger.generate("a", params)
    assert all(max(o.token_ids) < larger.spec.vocab_size for o in result.outputs)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prompt": "ab<image_soft_token>c"}, "prompt"),
        ({"chat": [{"role": "user", "content": "<image_soft_token>"}]}, "chat"),
    ],
)
def test_a_prompt_that_holds_one_is_told_which_and_where(larger, given, field):
    with pytest.raises(RequestError) as error:
        larger.add_request(**given)
    assert error.value.field == field
    told = str(error.value)
    assert "'<image_soft_token>'" in told
    assert "id 259 is outside the model's vocabulary of 259" in told
    if field == "prompt":
        assert "at character 2, token 2" in told


def test_a_gguf_file_that_names_one_of_two_has_both(tmp_path):
    with Runtime(config_of(write_model(tmp_path, settings=EVERY))) as runtime:
        named = replace(runtime.spec, eos_token_ids=(EOS,), eos_from=("GGUF metadata",))
        assert with_eos(named, runtime.tokenizer).eos_token_ids == (EOS, END)
        by_config = replace(named, eos_from=("config.json",))
        assert with_eos(by_config, runtime.tokenizer) == by_config
