"""Lines with a verdict, printed as they come and kept as JSON."""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAIL, SKIPPED = "ok", "FAIL", "skipped"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at."""

    section: str
    name: str
    verdict: str
    reason: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = "  ".join(f"{name} {_short(value)}" for name, value in self.values.items())
        reason = f"  ({self.reason})" if self.reason else ""
        return f"{self.verdict:<7} {self.section:<9} {self.name:<44} {shown}{reason}"


class Deadline:
    """When a section must end; what it has not begun by then is skipped."""

    def __init__(self, at: float) -> None:
        self._at = at

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._at


class Report:
    """Collects lines.

    Args:
        path: of the JSON file, written by `save`; None keeps it all in memory.
        about: how the run was asked for.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.lines: list[Line] = []
        self.about = about
        self.is_whole = False
        self._path = path
        self._started = time.monotonic()

    def add(self, section: str, name: str, verdict: str, reason: str = "", **values: Any) -> None:
        """Note and print a line."""
        line = Line(section, name, verdict, reason, values)
        self.lines.append(line)
        print(line, flush=True)

    def check(self, section: str, name: str, passed: bool, aim: str, **values: Any) -> None:
        """A line that is ok or FAIL; `aim` is the reason of a FAIL."""
        self.add(section, name, OK if passed else FAIL, "" if passed else aim, **values)

    def skip(self, section: str, name: str, reason: str, **values: Any) -> None:
        """A line that nothing was held against."""
        self.add(section, name, SKIPPED, reason, **values)

    @contextmanager
    def guard(self, section: str, name: str) -> Iterator[None]:
        """What breaks in here is a FAIL, and what comes after it is looked at all the same."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add(section, name, FAIL, f"{type(error).__name__}: {error}")

    @property
    def counts(self) -> dict[str, int]:
        """Lines by verdict."""
        found = Counter(line.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in (OK, FAIL, SKIPPED)}

    def save(self) -> None:
        """Write what there is; a reader never sees half a file."""
        if self._path is None:
            return
        whole = {
            "about": self.about,
            "seconds": round(time.monotonic() - self._started, 1),
            "is_whole": self.is_whole,
            "counts": self.counts,
            "lines": [asdict(line) for line in self.lines],
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(whole, indent=1))
        part.replace(self._path)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
