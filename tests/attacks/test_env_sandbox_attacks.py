"""Hostile cells: each attack by itself, as this user and as an ordinary one.

The negative control plays some of them without the system-call filter, where they must get
through: so these tests can fail. The attacks: `sandbox_attacks.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers.sandbox_attacks import (
    ATTACKS,
    CONTROL,
    LIMITS,
    ORDINARY,
    ORDINARY_USER,
    SECRET,
    open_neighbour,
    play,
    play_elsewhere,
    prepare,
)
from helpers.sandbox_events import done

from env.server.sandbox import Repl, SandboxHost, SubCall
from env.settings import EnvSettings, LimitSettings, SandboxSettings


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    os.environ["RLM_TEST_SECRET"] = SECRET
    with closing(SandboxHost(EnvSettings(limits=LIMITS))) as host:
        yield host
    del os.environ["RLM_TEST_SECRET"]


@pytest.fixture(scope="module")
def neighbour(host: SandboxHost) -> Repl:
    return open_neighbour(host)


@pytest.fixture
def repl(host: SandboxHost) -> Iterator[Repl]:
    """A REPL with the helpers that attacks use."""
    with closing(host.open("")) as repl:
        prepare(repl, host._zygote.pid)
        yield repl


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_harms_nobody(host: SandboxHost, neighbour: Repl, name: str) -> None:
    assert play(host, neighbour, ATTACKS[name]) == []


# --- the same as another user, and without the filter; beside the others, in the other process

elsewhere = pytest.mark.xdist_group("attacks elsewhere")


@pytest.fixture(scope="module")
def as_an_ordinary_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to become an ordinary user")
    return _reports(play_elsewhere(user=ORDINARY_USER))


@pytest.fixture(scope="module")
def without_the_filter() -> dict[str, Any]:
    return _reports(play_elsewhere("--unfiltered"))


def _reports(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"first": lines[0], **{line["attack"]: line["wrong"] for line in lines[1:]}}


@elsewhere
@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_user_is_as_safe(as_an_ordinary_user: dict[str, Any], name: str) -> None:
    assert as_an_ordinary_user[name] == []


@pytest.mark.nightly
@elsewhere
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes a user")
def test_an_ordinary_user_is_as_safe_from_all() -> None:
    reports = _reports(play_elsewhere("--all", user=ORDINARY_USER))
    assert {name: reports[name] for name in ATTACKS} == {name: [] for name in ATTACKS}


@elsewhere
def test_the_ordinary_user_has_no_capability(as_an_ordinary_user: dict[str, Any]) -> None:
    status = dict(line.split(":\t") for line in as_an_ordinary_user["first"]["status"].splitlines())
    assert status["Uid"].split() == ["1000"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["Seccomp"] == "2"
    assert "uid" not in as_an_ordinary_user["first"]["enforced"]
    assert as_an_ordinary_user["the end"] == 0


@elsewhere
@pytest.mark.parametrize("name", CONTROL)
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
    prepare(neighbour, host._zygote.pid)
    (code,) = ATTACKS[f"introspection: {name}"].cells
    assert "ESCAPED" in done(neighbour.run(code)).stdout


def test_settings_cannot_switch_the_filter_off() -> None:
    for settings in (SandboxSettings, LimitSettings):
        assert not any("seccomp" in name or "unsafe" in name for name in settings.model_fields)
    with pytest.raises(ValueError, match="Extra inputs"):
        SandboxSettings.model_validate({"seccomp": False})


# --- what the table cannot say


def test_a_forged_done_only_confuses_the_cells_own_repl(repl: Repl) -> None:
    (code,) = ATTACKS["channel: forged done with the right id"].cells
    assert done(repl.run(code)).error is None
    assert done(repl.run("print('honest')")).error in ("cpu", "killed")
    assert done(repl.run("print('honest')")).stdout == "honest\n"


def test_a_forged_call_is_a_call(repl: Repl) -> None:
    """It could have made it anyway; the host counts and answers it like any other."""
    (code,) = ATTACKS["channel: forged call"].cells
    assert repl.run(code) == SubCall("llm_query", ["x"], None)
    assert done(repl.resume("y" * 5_000_000)).error in ("cpu", "killed")


@pytest.mark.parametrize(
    ("code", "final"),
    [
        ("while True:\n    try: FINAL('x' * 10**6)\n    except BaseException: pass", "x" * 10**6),
        ("import os\ntry: FINAL(1)\nexcept BaseException: os.abort()", 1),
    ],
    ids=["flood", "crash"],
)
def test_a_flood_of_finals_is_cut_short_and_one_survives_a_crash(repl, code, final):
    result = done(repl.run(code))
    assert (result.error, result.final) == ("killed", final)
