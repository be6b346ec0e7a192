"""Runs `stepgraph` with its phases timed, and leaves with the first token; see bench_startup.py.

usage: _startup_probe.py OUT SPAWNED_S ARGUMENT...

SPAWNED_S is when the process was asked for, on time.monotonic's clock, which Linux has one of for
all processes. Little is imported here, since it counts.
"""

import importlib
import json
import os
import sys
import time

PHASES = (
    ("headers", "runtime.front.build", "read_spec"),
    ("headers", "runtime.front.build", "check_files"),
    ("kernels", "runtime.front.build", "_kernels_and_tokenizer"),
    ("tokenizer", "runtime.front.build", "load_tokenizer"),
    ("reading", "runtime.front.build", "load_model"),
    ("conversion", "runtime.models._gguf_convert", "converted_folder"),
    ("packing", "runtime.models._decoder", "Decoder.pack"),
    ("runner", "runtime.front.build", "ModelRunner"),
    ("capture", "runtime.runner", "ModelRunner._capture_graphs"),
)
"""(phase, module, function) of what `Runtime(config)` calls. `_kernels_and_tokenizer` waits for
kernels, and calls `load_tokenizer`."""
ORDER = (
    *("interpreter", "config", "imports", "wiring"),
    *dict.fromkeys(phase for phase, _, _ in PHASES),
    "first token",
)


class Clock:
    """Seconds by phase, those inside another one excluded."""

    def __init__(self, spawned_s):
        self._spawned_s = self._last_s = spawned_s
        self._open = ["interpreter"]
        self._phases = dict.fromkeys(ORDER, 0.0)

    def _turn(self):
        now = time.monotonic()
        self._phases[self._open[-1]] += now - self._last_s
        self._last_s = now

    def watch(self, phase, owner, name):
        """Time every call of a function, which has to be there."""
        function = getattr(owner, name)

        def run(*args, **kwargs):
            self._turn()
            self._open.append(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._open.pop()

        setattr(owner, name, run)

    def end(self):
        self._turn()
        used = os.times()
        cpu_s = used.user + used.system + used.children_user + used.children_system
        return {
            "wall_s": self._last_s - self._spawned_s,
            "cpu_s": cpu_s,
            "phases": self._phases,
        }


def main(out, spawned_s, *command):
    clock = Clock(float(spawned_s))
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from runtime.cli import generate, main

    open_runtime = generate.open_runtime

    def open_and_watch(config):
        import runtime.engine
        import runtime.front.api

        clock.watch("wiring", runtime.front.api, "build_engine")
        for phase, module, path in PHASES:
            if "gguf" in module and not config.model.path.endswith(".gguf"):
                continue  # never imported then
            owner, _, name = path.rpartition(".")
            home = importlib.import_module(module)
            clock.watch(phase, getattr(home, owner) if owner else home, name)
        step = runtime.engine.Engine.step

        def step_to_first_token(engine):
            outputs = step(engine)
            if any(output.token_id is not None for output in outputs):
                with open(out, "w", encoding="utf-8") as file:
                    json.dump(clock.end(), file)
                os._exit(0)
            return outputs

        runtime.engine.Engine.step = step_to_first_token
        clock.watch("first token", runtime.engine.Engine, "step")
        return open_runtime(config)

    generate.open_runtime = open_and_watch
    clock.watch("config", generate, "load_config")
    clock.watch("imports", generate, "open_runtime")
    return main.run(command)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
