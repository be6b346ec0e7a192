"""What capturing cost, per bucket."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """One bucket."""

    kind: str
    num_tokens: int
    """padded"""
    num_reqs: int
    """padded; 0 where the graph serves any number"""
    kv_class: int
    num_segments: int
    seconds: float
    memory_bytes: int
    """growth of the pool, and of what the driver keeps per graph"""


@dataclass(slots=True)
class CaptureReport:
    """Every captured bucket, in the order of capture."""

    records: list[CaptureRecord] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.records)

    @property
    def memory_bytes(self) -> int:
        return sum(record.memory_bytes for record in self.records)

    def kv_blocks(self, block_bytes: int) -> int:
        """KV blocks that would fit into the memory of the graphs, rounded up.

        Args:
            block_bytes: bytes of a KV block over all layers.
        """
        return -(-self.memory_bytes // block_bytes)

    def as_dict(self, block_bytes: int = 0) -> dict[str, Any]:
        """For JSON.

        Args:
            block_bytes: bytes of a KV block over all layers, for the `kv_blocks` of each bucket, a
                fraction, and of all, rounded up; 0 leaves them out.
        """
        found: dict[str, Any] = {"seconds": self.seconds, "memory_bytes": self.memory_bytes}
        buckets = [asdict(record) for record in self.records]
        if block_bytes:
            found["kv_blocks"] = self.kv_blocks(block_bytes)
            for bucket in buckets:
                bucket["kv_blocks"] = round(bucket["memory_bytes"] / block_bytes, 1)
        return found | {"buckets": buckets}

    def table(self, block_bytes: int = 0) -> Table:
        """For a terminal.

        Args:
            block_bytes: bytes of a KV block over all layers, for the column of KV blocks; 0 leaves
                that column out.
        """
        from rich.table import Table

        table = Table(title="captured graphs", show_footer=True)
        totals = ["", "", "", "total", f"{self.seconds:.2f}", f"{self.memory_bytes / MIB:.1f}"]
        names = ["kind", "tokens", "requests", "segments", "seconds", "MiB"]
        if block_bytes:
            names.append("KV blocks")
            totals.append(str(self.kv_blocks(block_bytes)))
        for name, total in zip(names, totals, strict=True):
            table.add_column(name, footer=total, justify="left" if name == "kind" else "right")
        for record in self.records:
            cells = [
                record.kind + (f" kv<={record.kv_class}" if record.kv_class else ""),
                str(record.num_tokens),
                str(record.num_reqs or "any"),
                str(record.num_segments),
                f"{record.seconds:.2f}",
                f"{record.memory_bytes / MIB:.1f}",
            ]
            if block_bytes:
                cells.append(f"{record.memory_bytes / block_bytes:.1f}")
            table.add_row(*cells)
        return table
