"""Hostile bytes of a worker and hostile messages of a client: the checks of `benchmarks/fuzz`.

Fixed inputs here, some hundred; the command there runs for minutes, guided by coverage.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import frames
from benchmarks.fuzz import server as fuzz_server
from env.chat_tokens import TOKEN
from env.server import guard
from env.server.sandbox import results, wire

BYTES = st.binary(min_size=40, max_size=400)
QUICK = settings(
    derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    logging.disable()
    yield
    fuzz_server.fixture().close()
    fuzz_server.fixture.cache_clear()
    logging.disable(logging.NOTSET)


@settings(QUICK, max_examples=400)
@given(BYTES)
def test_whatever_a_worker_sends_is_a_message_or_refused(data: bytes) -> None:
    frames.check_worker(data)


@settings(QUICK, max_examples=80)
@given(BYTES)
def test_whatever_a_client_sends_is_answered(server: None, data: bytes) -> None:
    fuzz_server.check_client(data)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@settings(QUICK, max_examples=50_000, derandomize=False)
@given(BYTES)
def test_whatever_else_a_worker_sends_is_a_message_or_refused(data: bytes) -> None:
    frames.check_worker(data)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@settings(QUICK, max_examples=5_000, derandomize=False)
@given(BYTES)
def test_whatever_else_a_client_sends_is_answered(server: None, data: bytes) -> None:
    fuzz_server.check_client(data)


def _first_finding(check: Callable[[bytes], None], inputs: int, seed: int = 1) -> str:
    """Message of the first failure among so many inputs."""
    draw = random.Random(seed)
    for _ in range(inputs):
        try:
            check(draw.randbytes(200))
        except AssertionError as error:
            return str(error)
    return ""


def test_negative_control_a_text_named_too_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "characters", lambda value: 0)
    assert "characters" in _first_finding(frames.check_worker, 8000, seed=7)


def test_negative_control_a_token_inside_a_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "without_chat_tokens", lambda text: TOKEN.sub("", text))
    assert "a chat token" in _first_finding(frames.check_worker, 8000, seed=10)


def test_negative_control_without_the_guard_sessions_end_by_exceptions(
    server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "refusal", lambda text: None)
    assert _first_finding(fuzz_server.check_client, 100)
