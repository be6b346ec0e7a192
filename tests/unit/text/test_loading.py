import logging
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.sections import ModelConfig
from runtime.errors import ModelError, RequestError
from runtime.text import load_tokenizer
from tests.unit.text import vocabularies as v

SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
KINDS = {
    "byte_level": (v.byte_level_backend, {"bos_token": "<s>", "eos_token": "</s>"}),
    "unigram": (v.sentencepiece_backend, SPECIAL),
    "llama": (v.llama_backend, {"tokenizer_class": "LlamaTokenizer", **SPECIAL}),
    "llama_legacy": (
        v.llama_backend,
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_eos_token": True, **SPECIAL},
    ),
    "qwen2": (v.byte_level_backend, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>"}),
    "cleaned": (v.byte_level_backend, {"clean_up_tokenization_spaces": True}),
    "split": (v.byte_level_backend, {"split_special_tokens": True, "eos_token": "</s>"}),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Of each kind: ours, read back from what was kept, and transformers' own."""
    from transformers import AutoTokenizer

    root, found = tmp_path_factory.mktemp("tokenizers"), {}
    for name, (backend, config) in KINDS.items():
        folder = v.save_folder(root / name, backend(), **config)
        settings = ModelConfig(path=str(folder), cache_dir=str(root / "cache"))
        load_tokenizer(settings)
        found[name] = load_tokenizer(settings), AutoTokenizer.from_pretrained(folder)
    assert len(os.listdir(root / "cache" / "tokenizers")) == 2 * len(KINDS)  # an entry, its lock
    return found


TEXTS = st.lists(
    st.sampled_from(["the", " ", "fox", "  ", "</s>", "<s>", "<tool>", "世", "🔥", "\n", "'t", "9"])
    | st.text(max_size=4)
).map("".join)


@pytest.mark.parametrize("name", KINDS)
@given(text=TEXTS)
def test_encode_equals_transformers(pairs, name, text):
    ours, reference = pairs[name]
    for special in (True, False):
        ids = reference.encode(text, add_special_tokens=special)
        assert ours.encode(text, add_special_tokens=special) == ids
        for skip in (True, False):
            wanted = reference.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert ours.decode(ids, skip_special_tokens=skip) == wanted


@pytest.mark.parametrize("name", ["byte_level", "qwen2", "split"])
@given(data=st.data())
def test_decode_of_any_ids_equals_transformers(pairs, name, data):
    ours, reference = pairs[name]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size + 5)))
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", KINDS)
def test_what_it_tells_equals_transformers(pairs, name):
    ours, reference = pairs[name]
    assert ours.vocab_size == len(reference)
    assert ours.bos_token_id == reference.bos_token_id
    assert ours.eos_token_id == reference.eos_token_id
    assert ours.special_tokens == reference.special_tokens_map
    assert ours.special_ids >= set(reference.all_special_ids)
    ids = range(ours.vocab_size)
    assert [ours.piece(i) for i in ids] == reference.convert_ids_to_tokens(list(ids))
    assert [ours.token_id(ours.piece(i)) for i in ids] == list(ids)
    assert ours.piece(-1) is None
    assert ours.piece(10**6) is None
    assert ours.token_id("no such piece") is None


@pytest.mark.slow
@given(text=TEXTS)
def test_the_real_model_decodes_as_transformers(smollm2, reference_smollm2, text):
    ids = smollm2.encode(text)
    assert smollm2.decode(ids, False) == reference_smollm2.decode(ids)
    assert smollm2.eos_token_id == reference_smollm2.eos_token_id == 2
    assert smollm2.special_tokens == reference_smollm2.special_tokens_map
    assert smollm2.has_chat_template


@pytest.mark.case("DT15")
def test_the_cleaning_of_spaces_is_off_where_a_tokenizer_asks_for_it(pairs):
    ours, reference = pairs["cleaned"]
    assert reference.clean_up_tokenization_spaces
    ids = ours.encode("the fox . do n't", add_special_tokens=False)
    assert ours.decode(ids) == "the fox . do n't"


def test_token_bytes(pairs):
    ours, _ = pairs["byte_level"]
    ids = ours.encode("naïve 🔥", add_special_tokens=False)
    assert b"".join(map(ours.token_bytes, ids)) == "naïve 🔥".encode()
    assert ours.token_bytes(10**6) == b""
    ours, _ = pairs["unigram"]
    assert ours.token_bytes(ours.token_id("世")) == "世".encode()
    assert ours.token_bytes(ours.token_id("<0xE4>")) == b"\xe4"


@pytest.mark.parametrize(
    ("text", "says"), [(3, "must be text, got int"), ("a\ud800", "character 1")]
)
def test_what_is_no_text_is_refused(pairs, text, says):
    with pytest.raises(RequestError, match=f"^prompt: .*{says}"):
        pairs["byte_level"][0].encode(text)


# -- where it is found, and what is kept ----------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return v.save_folder(tmp_path / "model", v.byte_level_backend(), eos_token="</s>")


def load(path, tmp_path, **config):
    return load_tokenizer(ModelConfig(path=str(path), cache_dir=str(tmp_path / "cache"), **config))


def test_the_second_start_needs_no_transformers(folder, tmp_path):
    load(folder, tmp_path)
    cache = str(tmp_path / "cache")
    code = (
        "import sys; from runtime.config.sections import ModelConfig; from runtime.text import *\n"
        f"load_tokenizer(ModelConfig(path={str(folder)!r}, cache_dir={cache!r}))\n"
        "print({'torch', 'transformers', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_changed_folder_is_read_anew(folder, tmp_path):
    assert not load(folder, tmp_path).has_chat_template
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load(folder, tmp_path).has_chat_template


def test_a_copied_folder_finds_what_was_kept(folder, tmp_path, monkeypatch):
    load(folder, tmp_path)
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.setattr("runtime.text.loading._convert", None)
    assert load(tmp_path / "copy", tmp_path).eos_token_id is not None


@pytest.mark.parametrize("name", ["settings.json", "tokenizer.json", "manifest.json"])
def test_a_damaged_entry_is_made_anew(folder, tmp_path, name):
    wanted = load(folder, tmp_path).encode("the fox")
    (entry,) = (p for p in (tmp_path / "cache" / "tokenizers").iterdir() if p.is_dir())
    for data in ("", "{}"):
        (entry / name).write_text(data)
        assert load(folder, tmp_path).encode("the fox") == wanted
        assert (entry / name).read_text() not in ("", "{}")


def test_an_entry_of_the_right_size_that_cannot_be_read_is_made_anew(folder, tmp_path, caplog):
    wanted = load(folder, tmp_path).encode("the fox")
    (entry,) = (p for p in (tmp_path / "cache" / "tokenizers").iterdir() if p.is_dir())
    from runtime.text import loading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "is_whole", lambda path: path.exists())
        (entry / "tokenizer.json").write_text("{")
        assert load(folder, tmp_path).encode("the fox") == wanted
    assert "is damaged" in caplog.text


def test_without_a_place_to_keep_it_every_start_converts(folder, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    config = ModelConfig(path=str(folder), cache_dir=str(tmp_path / "file"))
    assert load_tokenizer(config).eos_token_id is not None
    assert "must be converted at every start" in caplog.text
    assert "model.cache_dir" in caplog.text


def test_a_config_file_stands_for_its_folder(folder, tmp_path):
    (folder / "config.json").write_text("{}")
    assert load(folder / "config.json", tmp_path).vocab_size == load(folder, tmp_path).vocab_size


def test_the_tokenizer_may_lie_elsewhere(folder, tmp_path):
    empty = tmp_path / "weights"
    empty.mkdir()
    assert load(empty, tmp_path, tokenizer=str(folder)).eos_token_id is not None


def test_a_model_without_a_tokenizer_serves_token_ids(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    (tmp_path / "weights").mkdir()
    assert load(tmp_path / "weights", tmp_path) is None
    assert "holds no tokenizer: only token ids can be served" in caplog.text


def test_what_is_named_must_be_there(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, says in (("none", "does not exist"), ("empty", "holds no tokenizer")):
        with pytest.raises(ModelError, match=rf"^model\.tokenizer: .*{name} {says}; supported: "):
            load(folder, tmp_path, tokenizer=str(tmp_path / name))
    with pytest.raises(ModelError, match=r"^model\.path: .* does not exist; supported: "):
        load(tmp_path / "none", tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "Unheard"}}'])
def test_a_corrupt_tokenizer_file(folder, tmp_path, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"the tokenizer of .*model cannot be read: .*supported: "):
        load(folder, tmp_path)


def test_a_corrupt_gguf_file(tmp_path):
    path = tmp_path / "model.gguf"
    for data in (b"", b"GGUF", b"not a model" * 10):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"the tokenizer of .*model\.gguf cannot be read"):
            load(path, tmp_path)
    assert not list(tmp_path.glob("cache/tokenizers/*"))
