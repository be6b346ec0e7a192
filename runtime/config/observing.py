"""The section `observe`: what the runtime writes down of its work."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from runtime.config.problems import Key
from runtime.config.section import Section
from runtime.config.units import parse_memory

TraceBytes = Annotated[int, Field(ge=1 << 16), BeforeValidator(parse_memory)]


class ObserveConfig(Section):
    yaml_key: ClassVar[Key] = ("observe",)

    trace: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="write every step to this JSONL file; it replaces the file"
    )
    trace_max_bytes: TraceBytes = Field(
        256 * 1024**2, description="of a file of the trace, such as 64MiB; then the next one begins"
    )
    trace_files: Annotated[int, Field(ge=1)] = Field(
        4, description="files kept: FILE, the one before it FILE.1, ...; the oldest is dropped"
    )
