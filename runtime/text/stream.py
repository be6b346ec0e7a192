"""TextStream: from one request's output tokens to the text that its user sees."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.data.params import SamplingParams
from runtime.text.detokenizer import Detokenizer
from runtime.text.stop_strings import StopStrings
from runtime.text.tokenizer import Tokenizer


class TextStream:
    """Detokenises and stops one sample.

    A stop string counts from the token after `min_tokens` on: it ends the text where it begins, or
    where it ends with `include_stop_str_in_output`. The same option shows the text of the stop or
    EOS token that ended the request; special tokens need `skip_special_tokens: false` besides.

    Args:
        tokenizer: of the model.
        prompt_ids: of the request; see Detokenizer.
        params: stop, min_tokens, include_stop_str_in_output and skip_special_tokens are used.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._skipped = tokenizer.special_ids if params.skip_special_tokens else frozenset()
        self._special = tokenizer.special_ids if params.stop else frozenset()
        self._piece = tokenizer.piece
        self._shows_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._deltas: list[str] = []

    @property
    def text(self) -> str:
        """Every delta so far, joined."""
        if len(self._deltas) > 1:
            self._deltas = ["".join(self._deltas)]
        return self._deltas[0] if self._deltas else ""

    def push(self, token_id: int, is_stop: bool = False) -> tuple[str, str | None]:
        """Take one output token.

        Args:
            is_stop: whether this stop or EOS token has ended the request.

        Returns:
            The new text, and the stop string that it completed; the request is then to be ended,
            and later tokens give nothing.
        """
        self._num_tokens += 1
        is_hidden = token_id in self._skipped or (is_stop and not self._shows_stop)
        if is_hidden:
            text = self._piece(token_id) if token_id in self._special else None
            return self._show(text or "", hidden=True)
        return self._show(self._detokenizer.push((token_id,)))

    def finish(self) -> str:
        """The text that was held back, now that no token follows."""
        delta, stop = self._show(self._detokenizer.finish())
        if stop is None:
            held = self._stops.finish()
            self._deltas.append(held)
            delta += held
        return delta

    def _show(self, text: str, hidden: bool = False) -> tuple[str, str | None]:
        armed = self._num_tokens > self._min_tokens
        delta, stop = self._stops.push(text, armed, hidden)
        if delta:
            self._deltas.append(delta)
        return delta, stop
