"""compose.yaml: its schema and its names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_the_file_fits_the_specification() -> None:
    try:
        from compose_spec import PyCompose
    except ImportError:
        pytest.fail("compose-spec is missing. Install: make setup-cluster")
    PyCompose.from_json(json.dumps(COMPOSE)).validate()
    wrong = {**COMPOSE, "services": {"one": {"image": "a", "comand": ["b"]}}}
    with pytest.raises(ValueError, match="comand"):
        PyCompose.from_json(json.dumps(wrong))


def test_what_a_service_names_exists() -> None:
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"]), name
        assert {c["source"] for c in service.get("configs", ())} <= set(COMPOSE["configs"]), name
        volumes = {v.partition(":")[0] for v in service.get("volumes", ())}
        assert volumes <= set(COMPOSE["volumes"]), name
        if build := service.get("build"):
            assert (ROOT / build["dockerfile"]).is_file(), name
    published = [port for s in COMPOSE["services"].values() for port in s.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
