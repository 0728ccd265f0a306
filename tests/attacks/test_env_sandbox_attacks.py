"""Hostile cells: each attack by itself, as this user and as an ordinary one.

The negative control plays some of them without the system-call filter, where they must get
through: so these tests can fail. The attacks: `sandbox_attacks.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers import sandbox_attacks as attacks
from helpers.sandbox_events import done

from env.server.sandbox import Repl, SandboxHost, SubCall
from env.settings import EnvSettings, LimitSettings, SandboxSettings


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    os.environ["RLM_TEST_SECRET"] = attacks.SECRET
    with closing(SandboxHost(EnvSettings(limits=attacks.LIMITS))) as host:
        yield host
    del os.environ["RLM_TEST_SECRET"]


@pytest.fixture(scope="module")
def neighbour(host: SandboxHost) -> Repl:
    return attacks.open_neighbour(host)


@pytest.fixture
def repl(host: SandboxHost) -> Iterator[Repl]:
    """A REPL with the helpers that attacks use."""
    with closing(host.open("")) as repl:
        attacks.prepare(repl, host._zygote.pid)
        yield repl


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_harms_nobody(host: SandboxHost, neighbour: Repl, name: str) -> None:
    assert attacks.play(host, neighbour, attacks.ATTACKS[name]) == []


# --- the same as another user, and without the filter; beside the others, in the other process

elsewhere = pytest.mark.xdist_group("attacks elsewhere")


@pytest.fixture(scope="module")
def as_an_ordinary_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to become an ordinary user")
    return _reports(attacks.play_elsewhere(user=attacks.ORDINARY_USER))


@pytest.fixture(scope="module")
def without_the_filter() -> dict[str, Any]:
    return _reports(attacks.play_elsewhere("--unfiltered"))


def _reports(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"first": lines[0], **{line["attack"]: line["wrong"] for line in lines[1:]}}


@elsewhere
@pytest.mark.parametrize("name", attacks.ORDINARY)
def test_an_ordinary_user_is_as_safe(as_an_ordinary_user: dict[str, Any], name: str) -> None:
    assert as_an_ordinary_user[name] == []


@pytest.mark.nightly
@elsewhere
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes a user")
def test_an_ordinary_user_is_as_safe_from_all() -> None:
    reports = _reports(attacks.play_elsewhere("--all", user=attacks.ORDINARY_USER))
    assert not [name for name in attacks.ATTACKS if reports[name]]


@elsewhere
def test_the_ordinary_user_has_no_capability(as_an_ordinary_user: dict[str, Any]) -> None:
    status = dict(line.split(":\t") for line in as_an_ordinary_user["first"]["status"].splitlines())
    assert status["Uid"].split() == ["1000"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["Seccomp"] == "2"
    assert "uid" not in as_an_ordinary_user["first"]["enforced"]
    assert as_an_ordinary_user["the end"] == 0


@elsewhere
@pytest.mark.parametrize("name", attacks.CONTROL)
def test_negative_control_without_the_filter_it_gets_through(without_the_filter, name):
    assert "seccomp" not in without_the_filter["first"]["enforced"]
    assert without_the_filter[name] != []


@pytest.mark.parametrize(
    "name",
    [
        *("gc scan", "frames by sys", "frames of a generator", "memory by address"),
        *("a callback's __self__", "the worker behind a callback"),
    ],
)
def test_a_hunt_finds_what_is_there(host: SandboxHost, neighbour: Repl, name: str) -> None:
    """In the episode that holds the secret."""
    attacks.prepare(neighbour, host._zygote.pid)
    (code,) = attacks.ATTACKS[f"introspection: {name}"].cells
    assert "ESCAPED" in done(neighbour.run(code)).stdout


def test_settings_cannot_switch_the_filter_off() -> None:
    for settings in (SandboxSettings, LimitSettings):
        assert not any("seccomp" in name or "unsafe" in name for name in settings.model_fields)
    with pytest.raises(ValueError, match="Extra inputs"):
        SandboxSettings.model_validate({"seccomp": False})


# --- what the table cannot say


def test_a_forged_done_only_confuses_the_cells_own_repl(repl: Repl) -> None:
    (code,) = attacks.ATTACKS["channel: forged done with the right id"].cells
    assert done(repl.run(code)).error is None
    assert done(repl.run("print('honest')")).error in ("cpu", "killed")
    assert done(repl.run("print('honest')")).stdout == "honest\n"


def test_a_forged_call_is_a_call(repl: Repl) -> None:
    """It could have made it anyway; the host counts and answers it like any other."""
    (code,) = attacks.ATTACKS["channel: forged call"].cells
    assert repl.run(code) == SubCall("llm_query", ["x"], None)
    assert done(repl.resume("y" * 5_000_000)).error in ("cpu", "killed")


def test_a_flood_of_finals_is_cut_short(repl: Repl) -> None:
    flood = "while True:\n    try: FINAL('x' * 10**6)\n    except BaseException: pass"
    result = done(repl.run(flood))
    assert (result.error, result.final) == ("killed", "x" * 10**6)
