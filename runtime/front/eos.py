"""Which tokens end an answer, from every file that may say so."""

from __future__ import annotations

from dataclasses import replace

from runtime.errors import RequestError
from runtime.models import ModelSpec
from runtime.text import Tokenizer

_ANSWER = "What was said."


def with_eos(spec: ModelSpec, tokenizer: Tokenizer | None) -> ModelSpec:
    """The spec with the EOS ids that only its tokenizer knows.

    What generation_config.json names counts, else config.json, else the tokenizer's own EOS token
    and the one that its chat template writes behind an answer. Of a GGUF file, whose metadata
    often name one of two, the template's counts too.
    """
    if tokenizer is None:
        return spec
    found = dict(zip(spec.eos_token_ids, spec.eos_from, strict=True))
    is_said = bool(found)
    if not is_said and tokenizer.eos_token_id is not None:
        found[tokenizer.eos_token_id] = "the tokenizer's eos_token"
    if not is_said or "GGUF metadata" in spec.eos_from:
        end = end_of_turn(tokenizer)
        if end is not None:
            found.setdefault(end, "the chat template's end of a turn")
    found = {i: where for i, where in found.items() if i < spec.vocab_size}
    return replace(spec, eos_token_ids=tuple(found), eos_from=tuple(found.values()))


def end_of_turn(tokenizer: Tokenizer) -> int | None:
    """The special token that the chat template writes right behind what the assistant said."""
    if not tokenizer.has_chat_template:
        return None
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.render_chat(said, add_generation_prompt=False)
    except RequestError:  # a template that takes no such chat
        return None
    behind = text.rpartition(_ANSWER)[2].lstrip() if _ANSWER in text else ""
    ids = tokenizer.encode(behind, add_special_tokens=False)
    return ids[0] if ids and ids[0] in tokenizer.special_ids else None
