"""Hosts whose ranks train together: what `RLM_RANKS` says, and what is refused at once."""

from __future__ import annotations

import pytest

from agent.errors import RankError
from agent.training import ranks
from env import auth
from tasks import train, train_join
from tasks.config import resolve
from tasks.errors import ConfigError


def test_the_variable_names_address_number_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(auth.RANKS, raising=False)
    assert ranks.meeting() == ("", 0, 0, 1)
    monkeypatch.setenv(auth.RANKS, "10.0.0.1:29500/1/4")
    assert ranks.meeting() == ("10.0.0.1", 29500, 1, 4)


@pytest.mark.parametrize("text", ["10.0.0.1:29500", "h:1/2/2", "h/0/2", "h:1/-1/2", "h:1/0/0"])
def test_another_text_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(auth.RANKS, text)
    with pytest.raises(RankError, match=r"RLM_RANKS is not HOST:PORT/INDEX/COUNT"):
        ranks.meeting()


def test_the_stage_runs_on_the_first_host_with_an_environment_that_all_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = resolve()
    monkeypatch.delenv(auth.URL, raising=False)
    monkeypatch.delenv(auth.RANKS, raising=False)
    assert not train.require_first_host(params)
    with pytest.raises(ConfigError, match="RLM_RANKS names no further host"):
        train_join.join(params)
    monkeypatch.setenv(auth.RANKS, "h:1/0/2")
    with pytest.raises(ConfigError, match=r"cannot reach the environment.*Set RLM_ENV_URL"):
        train.require_first_host(params)
    monkeypatch.setenv(auth.URL, "http://10.0.0.2:8000")
    assert train.require_first_host(params)
    monkeypatch.setenv(auth.RANKS, "h:1/1/2")
    with pytest.raises(ConfigError, match=r"this is host 1\. Run `python -m tasks\.train_join`"):
        train.require_first_host(params)
