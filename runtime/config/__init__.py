"""Configuration: one schema, read from YAML, environment, flags or Python, checked at the door."""

from runtime.config.environment import environment_name
from runtime.config.limits import blocks_for, check_limits
from runtime.config.load import load_run_config
from runtime.config.model_path import resolve_model_path
from runtime.config.observing import ObserveConfig
from runtime.config.provenance import Origin, Provenance
from runtime.config.schema import RequestConfig, RunConfig, RuntimeConfig
from runtime.config.section import Section
from runtime.config.sections import (
    AttentionConfig,
    CacheConfig,
    EngineConfig,
    GraphsConfig,
    ModelConfig,
    SchedulerConfig,
)
from runtime.config.server import ServerConfig
from runtime.config.units import format_cores, format_memory, parse_cores, parse_memory

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "EngineConfig",
    "GraphsConfig",
    "ModelConfig",
    "ObserveConfig",
    "Origin",
    "Provenance",
    "RequestConfig",
    "RunConfig",
    "RuntimeConfig",
    "SchedulerConfig",
    "Section",
    "ServerConfig",
    "blocks_for",
    "check_limits",
    "environment_name",
    "format_cores",
    "format_memory",
    "load_run_config",
    "parse_cores",
    "parse_memory",
    "resolve_model_path",
]
