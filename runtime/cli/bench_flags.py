"""The flags of `stepgraph bench`."""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

from runtime.cli.options import add_config_arguments

DATASETS = ("random", "shared-prefix", "jsonl", "trace")
ARRIVALS = ("infinite", "poisson", "gamma", "constant", "trace")


class Length(NamedTuple):
    """LEN of the command line: `N`, or `LOW-HIGH`."""

    low: int
    high: int


def add_serve(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    _add_dataset(parser)
    group = parser.add_argument_group("arrivals", "without flags, all requests come at once")
    group.add_argument("--request-rate", metavar="R", type=_rate, help="requests/s; inf: at once")
    group.add_argument(
        "--burstiness",
        metavar="B",
        type=above_zero,
        help="shape of the gamma distribution of gaps: 1 is Poisson, less is burstier",
    )
    group.add_argument(
        "--arrivals",
        choices=ARRIVALS,
        help="default: poisson at a finite rate, gamma with --burstiness, trace with that dataset",
    )
    group.add_argument(
        "--arrival-trace",
        metavar="F.jsonl",
        help='the times of --arrivals trace: "timestamp" in ms on each line',
    )
    group.add_argument(
        "--time-scale", metavar="X", type=above_zero, help="stretch the times of a trace (1)"
    )
    group.add_argument(
        "--max-concurrency",
        metavar="N",
        type=count,
        help="requests in the engine at once; the others wait in the client, which is told apart",
    )
    group.add_argument(
        "--goodput",
        metavar="NAME:MS",
        nargs="+",
        default=[],
        help="limits of a good request, such as ttft:500 tpot:50; names: ttft, tpot, e2el",
    )
    _add_measuring(parser)
    _add_output(parser)


def add_throughput(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    _add_dataset(parser)
    _add_measuring(parser)
    _add_output(parser)


def add_latency(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    group = parser.add_argument_group("batches")
    group.add_argument("--batch-size", metavar="N", type=count, default=8, help="requests (8)")
    group.add_argument("--input-len", metavar="N", type=count, default=32, help="tokens (32)")
    group.add_argument("--output-len", metavar="N", type=count, default=128, help="tokens (128)")
    group.add_argument("--num-iters", metavar="N", type=count, default=10, help="batches (10)")
    group.add_argument(
        "--num-iters-warmup", metavar="N", type=natural, default=2, help="before these (2)"
    )
    _add_seed_and_percentiles(parser)
    _add_output(parser, has_details=False)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "dataset", "LEN is tokens: N, or LOW-HIGH for lengths drawn evenly between the two"
    )
    group.add_argument("--dataset", choices=DATASETS, default="random")
    group.add_argument(
        "--dataset-path",
        metavar="F.jsonl",
        help="of jsonl: lines as those of generate --input; of trace: timestamp (ms), "
        "input_length, output_length and maybe hash_ids",
    )
    group.add_argument(
        "--num-prompts", metavar="N", type=count, help="requests (64; the whole of a file)"
    )
    group.add_argument("--input-len", metavar="LEN", type=length, help="of prompts (256)")
    group.add_argument("--output-len", metavar="LEN", type=length, help="of answers (64)")
    group.add_argument(
        "--num-prefixes", metavar="N", type=count, help="of shared-prefix: how many (8)"
    )
    group.add_argument(
        "--prefix-len",
        metavar="N",
        type=count,
        help="of shared-prefix: tokens of each (256); --input-len follows them",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="of jsonl: answers have max_tokens tokens; those of other datasets always do",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = _add_seed_and_percentiles(parser)
    group.add_argument(
        "--num-warmups",
        metavar="N",
        type=natural,
        default=4,
        help="requests that run before and are not counted (4); the prefix cache is emptied then",
    )


def _add_seed_and_percentiles(
    parser: argparse.ArgumentParser,
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--seed", metavar="N", type=natural, default=0, help="of prompts and arrivals (0)"
    )
    group.add_argument(
        "--metric-percentiles",
        metavar="P,P",
        type=_percentiles,
        default=(50.0, 90.0, 95.0, 99.0),
        help="(50,90,95,99)",
    )
    return group


def _add_output(parser: argparse.ArgumentParser, has_details: bool = True) -> None:
    group = parser.add_argument_group("output", "the table goes to standard output")
    group.add_argument(
        "--json",
        metavar="F",
        help="write the figures; in a folder, a name is made of label, rate, model and date; - is "
        "standard output, and the table goes to standard error then",
    )
    if has_details:
        group.add_argument(
            "--save-detailed",
            action="store_true",
            help="into --json also the lengths, times and texts of every request",
        )
    group.add_argument("--label", metavar="TEXT", default="stepgraph", help="(stepgraph)")
    group.add_argument(
        "--metadata", metavar="KEY=VALUE", nargs="+", default=[], help="more fields of --json"
    )
    group.add_argument(
        "--chart",
        metavar="F.svg",
        help="draw latency percentiles, throughput over time and ITLs; .svg, .png or .pdf; needs "
        "matplotlib, the extra charts",
    )
    group.add_argument("--no-progress", action="store_true", help="say nothing while it runs")


def count(text: str) -> int:
    """An integer of the command line, >= 1."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """An integer of the command line, >= 0."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be an integer >= {least}, got {text}")
    return value


def length(text: str) -> Length:
    """`N` or `LOW-HIGH` of the command line, tokens."""
    low, dash, high = text.partition("-")
    found = Length(count(low), count(high if dash else low))
    if found.low > found.high:
        raise argparse.ArgumentTypeError(f"must be N or LOW-HIGH with LOW <= HIGH, got {text}")
    return found


def _rate(text: str) -> float:
    return math.inf if text == "inf" else above_zero(text)


def above_zero(text: str) -> float:
    """A finite number of the command line, > 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, got {text}")
    return value


def _percentiles(text: str) -> tuple[float, ...]:
    values = tuple(_number(part) for part in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"must be numbers of 0 to 100, got {text}")
    return values


def _number(text: str) -> float:
    """NaN, which no comparison holds for, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
