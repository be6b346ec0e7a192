"""Text: tokenizers, chat templates, incremental detokenisation, stop strings."""

from runtime.text.detokenizer import Detokenizer
from runtime.text.loading import load_tokenizer
from runtime.text.stop_strings import StopStrings
from runtime.text.stream import TextStream
from runtime.text.tokenizer import Tokenizer, TokenizerSettings

__all__ = [
    "Detokenizer",
    "StopStrings",
    "TextStream",
    "Tokenizer",
    "TokenizerSettings",
    "load_tokenizer",
]
