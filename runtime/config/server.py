"""The section `server`: what `stepgraph serve` listens on, and how much it takes in."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from runtime.config.problems import Key
from runtime.config.section import Section
from runtime.config.units import parse_memory

Bytes = Annotated[int, Field(ge=1), BeforeValidator(parse_memory)]


class ServerConfig(Section):
    yaml_key: ClassVar[Key] = ("server",)

    host: str = Field("127.0.0.1", description="the address to listen on; 0.0.0.0 is every one")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0: any free one")
    model_name: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="what clients call the model; null: the name of its file or folder"
    )
    api_key_file: str | None = Field(
        None, description="a key per line; clients then need one of them"
    )
    max_queued: Annotated[int, Field(ge=0)] = Field(
        256, description="most samples that wait for one of scheduler.max_num_seqs; others get 429"
    )
    max_body: Bytes = Field(16 * 1024**2, description="bytes of a request: a number, or 16MiB")
    tool_parser: Literal["auto", "hermes", "llama", "mistral"] = Field(
        "auto", description="how the model writes calls of tools; auto: as its template shows"
    )
    drain_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="seconds that SIGTERM leaves to running requests"
    )
