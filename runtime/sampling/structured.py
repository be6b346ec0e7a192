"""Structured output: JSON schema, regex, grammar or choice, as masks computed by llguidance.

The masks of a step are computed by a worker thread between `prepare` and `apply`, beside the
model's forward. llguidance is an extra, imported when the first request asks for it.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.params import StructuredOutput
from runtime.data.step import IntArray, NewRow
from runtime.errors import RequestError
from runtime.sampling.edits import TokenizerLike, Work, held_rows
from runtime.sampling.productive import can_end
from runtime.sampling.schema_ends import schema_can_end

FIELD = "structured_output"
MAX_KEPT_GRAMMARS = 128
JSON_OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{0,20}"}
"""Any layout up to a depth, and no endless white space, into which small models fall."""


class Grammars:
    """Compiles constraints for one vocabulary, and keeps the last ones compiled.

    One instance may serve several threads: the front compiles (and refuses), the sampler copies.
    """

    def __init__(
        self, tokenizer: TokenizerLike, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.num_ids = max(vocab_size, tokenizer.num_ids)
        """Bits of a mask. A tokenizer may know more tokens than the model has embeddings."""
        self._tokenizer = tokenizer
        self.eos_token_ids = [i for i in eos_token_ids if i < vocab_size]
        self._vocabulary: Any = None
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        """Another one: who finds a grammar does not wait for one that is being compiled."""

    def matcher(self, constraint: StructuredOutput) -> Any:
        """A fresh `llguidance.LLMatcher` at the start of the constraint.

        Raises:
            RequestError: invalid, unsatisfiable, or llguidance is not installed.
        """
        kind, text = _kind_and_text(constraint)
        key = f"{kind}:{text}"
        found = self._find(key)
        if found is None:
            with self._compiling:
                found = self._find(key) or self._keep(key, self._compile(kind, text))
        return found

    def check(self, constraint: StructuredOutput) -> None:
        """Raise the RequestError that `matcher` would."""
        self.matcher(constraint)

    def _find(self, key: str) -> Any:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key].deep_copy()

    def _keep(self, key: str, matcher: Any) -> Any:
        with self._lock:
            self._kept[key] = matcher
            if len(self._kept) > MAX_KEPT_GRAMMARS:
                self._kept.popitem(last=False)
            return matcher.deep_copy()

    def _compile(self, kind: str, text: str) -> Any:
        lib = _llguidance()
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary(lib)
        try:
            if kind == "json":
                grammar = lib.LLMatcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS)
            else:
                grammar = lib.grammar_from(kind, text)
            matcher = lib.LLMatcher(self._vocabulary, grammar, log_level=0)
        except ValueError as error:
            raise RequestError(FIELD, f"invalid {kind}: {error}") from None
        if matcher.is_error():
            raise RequestError(FIELD, f"invalid {kind}: {_first_lines(matcher.get_error())}")
        first = matcher.deep_copy()
        first.compute_bitmask()
        is_endless = (kind == "grammar" and not can_end(grammar)) or (
            kind == "json" and not schema_can_end(json.loads(text))
        )
        if first.is_error() or is_endless:
            raise RequestError(FIELD, f"no text matches this {kind}: {text!r}")
        return matcher

    def _read_vocabulary(self, lib: Any) -> Any:
        if not self.eos_token_ids:
            raise RequestError(FIELD, "needs an EOS token to end with, and this model has none")
        try:
            return lib.LLTokenizer(
                self._tokenizer.backend.to_str(),
                n_vocab=self.num_ids,
                eos_token=self.eos_token_ids,
            )
        except ValueError as error:
            raise RequestError(FIELD, f"cannot be used with this tokenizer: {error}") from None


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            FIELD, "needs the package llguidance; pip install 'stepgraph[structured]'"
        ) from None
    return llguidance


def _kind_and_text(constraint: StructuredOutput) -> tuple[str, str]:
    if constraint.json is not None:
        given = constraint.json
        try:
            return "json", given if isinstance(given, str) else json.dumps(given)
        except (TypeError, ValueError) as error:
            raise RequestError(FIELD, f"json is no JSON schema: {error}") from None
    if constraint.regex is not None:
        return "regex", constraint.regex
    if constraint.grammar is not None:
        return "grammar", constraint.grammar
    assert constraint.choice is not None
    return "choice", json.dumps(list(constraint.choice))


def _first_lines(message: str) -> str:
    """llguidance's message without its dump of the parser."""
    return message.split("\n<state>")[0].strip()


@dataclass(slots=True, eq=False)
class _Row:
    matcher: Any
    slot: int
    """row of the mask matrix"""
    num_consumed: int
    """known tokens that the matcher has seen; the prompt is not for it to see"""
    ends_from: float
    """num_tokens from which it may end where the grammar could go on"""
    masked_at: int = -1
    """num_tokens of which the mask is, or is being computed"""
    error: str = ""


class Structured:
    """The edit that applies the masks.

    `min_tokens` and `ignore_eos` keep a request from ending while its grammar can go on; a finished
    grammar leaves EOS alone, and so ends it. One that no token continues ends it with an error.
    """

    def __init__(self, grammars: Grammars | None, token_ids: npt.NDArray[np.int32]) -> None:
        self._grammars = grammars
        self._token_ids = token_ids
        self._rows: dict[int, _Row] = {}
        width = 0 if grammars is None else (grammars.num_ids + 31) // 32
        self._masks = np.zeros((0, width), np.int32)
        self._ends = _bits([] if grammars is None else grammars.eos_token_ids, width)
        self._free: list[int] = []
        self._pool: ThreadPoolExecutor | None = None
        self._executor: Any = None
        self._running: Future[None] | None = None

    def add(self, new: NewRow) -> bool:
        if new.params.structured_output is None:
            return False
        if self._grammars is None:
            raise RequestError(FIELD, "needs the model's tokenizer, and this runner has none")
        matcher = self._grammars.matcher(new.params.structured_output)
        self._wait()
        start, params = new.num_prompt_tokens, new.params
        ends_from = math.inf if params.ignore_eos else start + params.min_tokens
        self._rows[new.row] = _Row(matcher, self._take_slot(), start, ends_from)
        return True

    def drop(self, row: int) -> None:
        if row in self._rows:
            self._wait()
            self._free.append(self._rows.pop(row).slot)

    def prepare(self, rows: IntArray, num_tokens: IntArray) -> None:
        """Start computing the masks of those of `rows` that are held and have none yet."""
        tasks = []
        for i in held_rows(self._rows, rows):
            row, end = int(rows[i]), int(num_tokens[i])
            state = self._rows[row]
            if state.masked_at != end and not state.error:
                fresh = self._token_ids[row, state.num_consumed : end].tolist()
                state.masked_at = state.num_consumed = end
                tasks.append((state, fresh))
        if tasks:
            self._wait()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")
                self._executor = _llguidance().LLExecutor()
            self._running = self._pool.submit(self._compute, tasks)

    def apply(self, work: Work) -> None:
        if not (held := held_rows(self._rows, work.rows)):
            return
        self.prepare(work.rows[held], work.num_tokens[held])
        self._wait()
        states = [self._rows[int(work.rows[i])] for i in held]
        masks = self._masks[[s.slot for s in states]]
        for mask, state, i in zip(masks, states, held, strict=True):
            if work.num_tokens[i] < state.ends_from and (mask & ~self._ends).any():
                mask &= ~self._ends
        exclude(work.logits, held, masks, work.upload)
        work.errors.update({i: s.error for i, s in zip(held, states, strict=True) if s.error})

    def _compute(self, tasks: list[tuple[_Row, list[int]]]) -> None:
        """On the worker thread: feed the new tokens, then fill the masks."""
        try:
            for state, fresh in tasks:
                if not state.matcher.is_stopped():
                    state.matcher.consume_tokens(fresh)
            alive = [(s.matcher, s.slot) for s, _ in tasks if not s.matcher.is_error()]
            if alive:
                masks = self._masks
                self._executor.unsafe_compute_mask_ptr(
                    alive, masks.ctypes.data, masks.shape[1] * masks.itemsize, len(masks)
                )
            for state, _ in tasks:
                if state.matcher.is_error():
                    state.error = _death(state.matcher)
        except Exception as error:  # the library's own failure: these rows end, the step goes on
            for state, _ in tasks:
                state.error = f"{FIELD}: llguidance failed with {type(error).__name__}: {error}"

    def _wait(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def _take_slot(self) -> int:
        if not self._free:
            have = len(self._masks)
            more = np.zeros((max(4, have), self._masks.shape[1]), np.int32)
            self._masks = np.concatenate([self._masks, more])
            self._free = list(range(have, len(self._masks)))
        return self._free.pop()

    def close(self) -> None:
        """End the worker thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _bits(ids: list[int], width: int) -> npt.NDArray[np.int32]:
    """[width] words with the bits of these ids."""
    bits = np.zeros(width * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _death(matcher: Any) -> str:
    reason = _first_lines(matcher.get_error()) or matcher.stop_reason()
    return f"{FIELD}: the grammar cannot go on from this output ({reason})"


_CAPS_OF_BYTE = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)
"""[256, 8]: the most that the logits of 8 ids may be, by the byte of their mask."""


def exclude(
    logits: Tensor,
    index: list[int],
    masks: npt.NDArray[np.int32],
    upload: Callable[[npt.NDArray[Any]], Tensor],
) -> None:
    """Set the logits [n, V] of the rows `index` to -inf where the bit of `masks` is 0.

    Args:
        masks: [len(index), words], low bit first; ids after the last word are excluded.
    """
    num_ids = min(logits.shape[1], masks.shape[1] * 32)
    logits[:, num_ids:].index_fill_(0, upload(np.array(index, np.int64)), -torch.inf)
    if logits.device.type == "cpu":
        # a minimum is vectorised, a masked fill is not: ten times the time
        caps = np.empty((masks.shape[1] * 4, 8), np.float32)
        for i, bits in zip(index, masks.view(np.uint8), strict=True):
            np.take(_CAPS_OF_BYTE, bits, axis=0, out=caps, mode="clip")
            row = logits[i, :num_ids]
            torch.minimum(row, torch.from_numpy(caps).view(-1)[:num_ids], out=row)
        return
    words, rows = upload(masks), upload(np.array(index, np.int64))
    shifts = torch.arange(32, device=words.device, dtype=torch.int32)
    allowed = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :num_ids].bool()
    logits[rows, :num_ids] = logits[rows, :num_ids].masked_fill_(~allowed, -torch.inf)
