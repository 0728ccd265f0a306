"""Settings: what there is, how params.yaml, a profile and overrides combine, and the result."""

from tasks.config.layers import (
    PARAMS,
    PROFILES,
    RESOLVED,
    check,
    load_resolved,
    parse_override,
    read_resolved,
    read_yaml,
    resolve,
    write_resolved,
)

__all__ = [
    "PARAMS",
    "PROFILES",
    "RESOLVED",
    "check",
    "load_resolved",
    "parse_override",
    "read_resolved",
    "read_yaml",
    "resolve",
    "write_resolved",
]
