import pytest

from runtime.config.sections import ModelConfig
from runtime.text import load_tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer-cache")
    return load_tokenizer(ModelConfig(path=str(smollm2_path), cache_dir=str(folder)))


@pytest.fixture(scope="session")
def reference_smollm2(smollm2_path):
    """transformers' own tokenizer of the same file."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
