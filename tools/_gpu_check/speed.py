"""Steps, eager and from graphs, against the floor; the host's share; what capture cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attention_backends import AttentionBackend
from graphs import Kind
from runtime.models import LoadedModel
from runtime.runner import ModelRunner, measure_footprint
from tools._gpu_check.able import able_backends, refusal_of
from tools._gpu_check.batches import Pool
from tools._gpu_check.ceilings import Ceilings
from tools._gpu_check.floors import floor_ms
from tools._gpu_check.idle import OverlappedSteps, check_idle
from tools._gpu_check.report import Deadline, Report
from tools._gpu_check.scale import Scale
from tools._gpu_check.step_times import Bench, Times
from tools._gpu_check.subject import runner_of, settings
from tools._steps import Part

DECODE_AIM, MIXED_AIM, SPEEDUP_AIM = 1.25, 1.4, 2.0
"""Device time of a graph over the floor, at 1 and 64 rows; the same of a whole budget; graph over
eager at 1 row."""
AIMED_ROWS = (1, 64)
ESTIMATE_AIM = 0.8
"""Of what the graphs took, that the estimate must have said at least."""
MIB = 1 << 20
POOL_SHARE = 0.6
"""Of the free memory, for the KV pool."""


@dataclass(frozen=True, slots=True)
class Job:
    """One backend with one pair of modes."""

    name: str
    backend: type[AttentionBackend]
    block_size: int
    decode: str
    mixed: str

    def __str__(self) -> str:
        return f"{self.name} {self.decode}/{self.mixed}"


def check_speed(
    scale: Scale, loaded: LoadedModel, ceilings: Ceilings, report: Report, deadline: Deadline
) -> None:
    """Every able backend, the preferred one first, until the time is over."""
    able = able_backends(loaded.attention_shapes, scale, "speed", report)
    is_first = True
    for mixed in scale.mixed_modes:
        for name, backend, block_size in able:
            decode = mixed if mixed == "ragged" else scale.decode_mode
            job = Job(name, backend, block_size, decode, mixed)
            if name == "torch_paged" and scale.backends is None:
                report.skip("speed", str(job), "the reference is not timed")
            elif deadline.is_over:
                report.skip("speed", str(job), "time limit")
            elif reason := refusal_of(decode, mixed, loaded, backend, block_size):
                report.skip("speed", str(job), reason)
            else:
                with report.guard("speed", str(job)):
                    check = _Check(job, scale, loaded, ceilings, report, deadline)
                    check.run(with_estimate=is_first)
                is_first = False


class _Check:
    """The lines of one job."""

    def __init__(
        self,
        job: Job,
        scale: Scale,
        loaded: LoadedModel,
        ceilings: Ceilings,
        report: Report,
        deadline: Deadline,
    ) -> None:
        self._job, self._scale, self._loaded = job, scale, loaded
        self._ceilings, self._report, self._deadline = ceilings, report, deadline

    def run(self, *, with_estimate: bool) -> None:
        job, scale = self._job, self._scale
        config = settings(
            job.decode,
            job.mixed,
            max_num_seqs=max(scale.rows),
            max_tokens=max(scale.step_tokens, *scale.rows),
            max_model_len=max(*scale.contexts, scale.step_tokens) + 2,
            sizes=[*scale.rows, scale.step_tokens],
        )
        estimate = self._estimate(config) if with_estimate else None
        num_blocks = self._num_blocks()
        with runner_of(
            config,
            self._loaded,
            job.backend,
            block_size=job.block_size,
            num_blocks=num_blocks,
        ) as runner:
            self._capture(runner, estimate)
            for cache in (tensor for layer in runner.kv for tensor in layer):
                cache[2:].normal_()  # zeros would be faster than what is served
            pool = Pool(num_blocks, job.block_size)
            bench = Bench(runner, self._loaded, scale, pool)
            for context in scale.contexts:
                for rows in scale.rows:
                    self._decode(bench, rows, context)
            steps = OverlappedSteps(str(job), runner, config, scale, job.block_size, num_blocks)
            check_idle(steps, self._report, self._deadline)
            tokens = scale.step_tokens
            self._whole_budget(bench, f"prefill {tokens}", [Part(0, tokens)])
            decodes = [Part(scale.contexts[0] - 1, 1)] * (min(64, max(scale.rows)) - 1)
            chunk = Part(0, tokens - len(decodes))
            self._whole_budget(bench, f"mixed {tokens}", [*decodes, chunk])

    def _num_blocks(self) -> int:
        tokens, device = self._scale.pool_tokens, self._scale.device
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0]
            fitting = int(free * POOL_SHARE) // self._loaded.spec.kv_bytes_per_token
            tokens = min(tokens, fitting)
        return tokens // self._job.block_size

    def _estimate(self, config: object) -> int | None:
        """Bytes of graphs, as start-up estimates them; None where there is no device memory."""
        if self._scale.device.type != "cuda":
            self._report.skip("memory", f"{self._job} parts", "not measured on the CPU")
            return None
        parts = measure_footprint(
            config,
            self._loaded,
            self._job.backend,
            device=self._scale.device,
            block_size=self._job.block_size,
        )
        sizes = ("weights", "buffers", "activations", "workspaces", "graphs")
        mib = {f"{name}_MiB": round(getattr(parts, name) / MIB) for name in sizes}
        self._report.add("memory", f"{self._job} parts", "ok", **mib)
        return parts.graphs

    def _capture(self, runner: ModelRunner, estimate: int | None) -> None:
        captured, line = runner.graphs.report, f"{self._job} capture"
        took = captured.memory_bytes
        values = {
            "graphs": len(captured.records),
            "seconds": captured.seconds,
            "MiB": took / MIB,
        }
        if estimate is None:
            self._report.skip("memory", line, "no estimate for this pair", **values)
            return
        self._report.check(
            "memory",
            line,
            estimate >= ESTIMATE_AIM * took,
            f"estimated under {ESTIMATE_AIM:g} of what it took",
            **values,
            estimated_MiB=estimate / MIB,
        )

    def _decode(self, bench: Bench, rows: int, context: int) -> None:
        line, parts = f"{self._job} decode {rows} x {context}", [Part(context - 1, 1)] * rows
        if self._deadline.is_over:
            self._report.skip("speed", line, "time limit")
            return
        graph = self._time(bench, line, parts, DECODE_AIM if rows in AIMED_ROWS else None)
        eager = bench.time(parts, self._deadline, eager=True)
        gain, aim = eager.step / graph.step, self._has_aim(rows == 1)
        self._report.check(
            "speed",
            f"{line}, eager",
            not aim or gain >= SPEEDUP_AIM,
            f"a graph is not {SPEEDUP_AIM:g}x faster",
            step_ms=eager.step,
            device_ms=eager.device,
            host_ms=eager.host,
            graph_gain=gain,
        )

    def _whole_budget(self, bench: Bench, what: str, parts: Sequence[Part]) -> None:
        line = f"{self._job} {what}"
        if self._deadline.is_over:
            self._report.skip("speed", line, "time limit")
            return
        self._time(bench, line, parts, MIXED_AIM)
        eager = bench.time(parts, self._deadline, eager=True)
        values = {"step_ms": eager.step, "device_ms": eager.device, "host_ms": eager.host}
        self._report.add("speed", f"{line}, eager", "ok", **values)

    def _time(self, bench: Bench, line: str, parts: Sequence[Part], aim: float | None) -> Times:
        """Time the replayed step and hold it against the floor."""
        times = bench.time(parts, self._deadline, eager=False)
        floor = floor_ms(self._loaded.spec, parts, self._ceilings)
        over = times.device / floor
        is_fast = aim is None or not self._has_aim(True) or over <= aim
        is_replayed = times.kind != Kind.EAGER.value
        reason = f"over {aim:g}x the floor" if aim and is_replayed else "it ran eagerly"
        self._report.check(
            "speed",
            line,
            is_fast and is_replayed,
            reason,
            kind=times.kind,
            step_ms=times.step,
            device_ms=times.device,
            host_ms=times.host,
            floor_ms=floor,
            over_floor=over,
        )
        return times

    def _has_aim(self, wanted: bool) -> bool:
        return wanted and self._scale.has_aims
