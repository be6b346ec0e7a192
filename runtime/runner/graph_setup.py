"""The graphs of a configuration, with the runtime's errors, and what is told about them."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attention_backends import Support
from graphs import (
    CaptureReport,
    GraphError,
    GraphMode,
    GraphOptions,
    GraphSet,
    choose_modes,
)
from runtime.errors import BackendError
from runtime.observe.stats import GraphStats

if TYPE_CHECKING:
    from runtime.config import GraphsConfig, RuntimeConfig

log = logging.getLogger(__name__)


def check_modes(
    config: GraphsConfig, support: Support, device: torch.device
) -> tuple[type[GraphMode], type[GraphMode]]:
    """The modes of decode steps and of all others.

    Raises:
        BackendError: what is wrong with either, with every mode's reason.
    """
    try:
        return choose_modes(config.decode, config.mixed, support, device)
    except GraphError as error:
        raise BackendError(str(error)) from None


def make_graphs(
    config: RuntimeConfig,
    support: Support,
    device: torch.device,
    max_model_len: int,
    statics: Callable[[], Mapping[str, Tensor]],
) -> GraphSet:
    """The graph set of `config.graphs`; nothing is captured yet.

    Args:
        support: the attention backend's.
        statics: names the tensors whose addresses graphs rely on.

    Raises:
        BackendError: an unknown mode, or one that cannot serve here, with every mode's reason.
    """
    graphs = config.graphs
    try:
        return GraphSet(
            graphs.decode,
            graphs.mixed,
            support,
            device,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=max_model_len,
            sizes=graphs.sizes,
            options=GraphOptions(
                lazy_after=graphs.lazy_after,
                check_addresses=graphs.check_addresses,
                compare_every=graphs.compare_every,
            ),
            statics=statics,
        )
    except GraphError as error:
        raise BackendError(str(error)) from None


def log_report(report: CaptureReport, block_bytes: int) -> None:
    """Log what the captures cost, as a table; nothing where none was made, or nobody listens."""
    if report.records and log.isEnabledFor(logging.INFO):
        from rich.console import Console

        console = Console(file=io.StringIO(), width=100)
        with console.capture() as capture:
            console.print(report.table(block_bytes))
        log.info("%s", capture.get().rstrip())


def graph_stats(graphs: GraphSet, block_bytes: int) -> GraphStats:
    """A snapshot.

    Args:
        block_bytes: bytes of a KV block over all layers.
    """
    counted, report = graphs.stats(), graphs.report
    decode, mixed = graphs.modes
    return GraphStats(
        decode_mode=decode,
        mixed_mode=mixed,
        bucket_steps=dict(counted.buckets),
        eager_reasons=dict(counted.eager_reasons),
        captured=report.as_dict(block_bytes),
    )
