"""Token ids of llama.cpp: of every FOLDER/*.gguf, those of the strings in FOLDER/texts.json.

usage: tokenize_llamacpp.py FOLDER; writes NAME.json beside each file
"""

import json
import sys
from pathlib import Path

import llama_cpp as llama

silent = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(silent, None)
llama.llama_backend_init()
params = llama.llama_model_default_params()
params.vocab_only = True
folder = Path(sys.argv[1])
texts = [text.encode() for text in json.loads((folder / "texts.json").read_text())]
buffer = (llama.llama_token * (2 * max(map(len, texts)) + 16))()


def tokenize(vocab, text):
    count = llama.llama_tokenize(vocab, text, len(text), buffer, len(buffer), True, True)
    assert count >= 0
    return list(buffer[:count])


for path in sorted(folder.glob("*.gguf")):
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp refuses {path.name}"
    vocab = llama.llama_model_get_vocab(model)
    path.with_suffix(".json").write_text(json.dumps([tokenize(vocab, text) for text in texts]))
    llama.llama_model_free(model)
