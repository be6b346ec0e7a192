"""The tokens of a GGUF file that are found in a text before it is cut into words."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Of tokenizer.ggml.token_type."""

_ID_KEYS = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "mask": "mask",
}
"""Name among special tokens -> part of the file's key, in the format's spelling."""

_NAMES = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> </s> "
    "<|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> "
    "<turn|> <|tool_response> <\uff5cend\u2581of\u2581sentence\uff5c> [e~[ "
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> \u2581<PRE> "
    "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim\u2581hole\uff5c> <SUF> \u2581<SUF> "
    "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> \u2581<MID> "
    "<|code_prefix|> <|prefix|> <|code_suffix|> <|suffix|> <|code_middle|> <|middle|> "
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> "
    "<reponame> <|file_sep|>"
)
_CONTROL_BY_NAME = frozenset(_NAMES.split())
"""Control tokens whatever their type: files that say otherwise are taken to be mistaken."""


def special_ids(keys: dict[str, Any], num_pieces: int) -> dict[str, int]:
    """Name (`bos`, `eos`, `eot`...) to id, of those that the file names and holds."""
    defaults = {"bos": 1, "eos": 2, "unk": 0} if keys["model"] == "llama" else {}
    found = {
        name: keys.get(f"{key}_token_id", defaults.get(name)) for name, key in _ID_KEYS.items()
    }
    return {name: i for name, i in found.items() if i is not None and 0 <= i < num_pieces}


def added_tokens(keys: dict[str, Any], pieces: list[str], model_name: str) -> list[AddedToken]:
    """Control, unknown and user-defined tokens; those of the last kind are shown in a text."""
    types = keys.get("token_type") or [1] * len(pieces)
    left, right = _blank_eaters(keys, model_name)
    found = []
    for piece, kind in zip(pieces, types, strict=False):
        is_special = kind in (_UNKNOWN, _CONTROL) or piece in _CONTROL_BY_NAME
        if is_special or kind == _USER_DEFINED:
            found.append(
                AddedToken(
                    piece,
                    lstrip=piece in left,
                    rstrip=right and piece not in _NOT_RIGHT,
                    normalized=False,
                    special=is_special,
                )
            )
    return found


_NOT_RIGHT = ("<unk>", "<s>", "<|endoftext|>")


def _blank_eaters(keys: dict[str, Any], model_name: str) -> tuple[tuple[str, ...], bool]:
    """Tokens that take the blanks before them, and whether most take those behind: neither stands
    in the file, so the reference goes by names."""
    name = model_name.lower()
    if any(part in keys.get("pre", "") for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return ("<mask>",), False
    if "phi-3" in name or "phi3" in name:
        return (), True
    return ("[MASK]",) if "modern-bert" in name else (), False
