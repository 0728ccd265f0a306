"""The doctor's judgement of machines: what fits, what is missing, and what it prints."""

from dataclasses import replace

import pytest
from helpers.cards import A100, H200, OLD_T4, T4

from flows.doctor import best_profile, missing_parts, report, require_card, require_model
from flows.machine import Machine, parse_card
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError

GB = 2**30
LAPTOP = Machine(
    system="Linux",
    release="6.8.0",
    python=(3, 11),
    memory_bytes=13 * GB,
    disk_free_bytes=80 * GB,
    torch="2.13.0+cpu",
    torch_cuda=None,
    cards=(),
    cards_fault=None,
    seccomp=True,
    compiler=True,
    unsloth=False,
)
READY = replace(LAPTOP, memory_bytes=64 * GB, torch="2.13.0", torch_cuda="13.0", unsloth=True)


def fixes(machine: Machine) -> dict[str, str]:
    return {part.what: part.fix for part in missing_parts(machine, best_profile(machine))}


CHOSEN = [
    *((T4, "t4"), (A100, "a100"), (H200, "h200"), (OLD_T4, "t4")),
    ("NVIDIA H100, 81559, 81000, 580.1, 9.0", "h200"),
    ("Tesla V100, 32510, 32510, 580.1, 7.0", "nano"),  # too old
    ("GTX 1660, 6144, 6000, 580.1, 7.5", "nano"),  # too small
]


@pytest.mark.parametrize(("text", "profile"), CHOSEN)
def test_the_largest_profile_that_a_card_fits_is_chosen(text: str, profile: str) -> None:
    assert best_profile(replace(READY, cards=(parse_card(text),))).name == profile


@pytest.mark.parametrize("text", [T4, A100, H200])
def test_a_machine_with_everything_installed_misses_nothing(text: str) -> None:
    machine = replace(READY, cards=(parse_card(text),))
    assert fixes(machine) == {}
    assert report(machine)[-1] == f'Next: make full ARGS="--profile {best_profile(machine).name}"'
    assert report(machine)[-2] == "First get the data: docs/trials.md"
    assert report(LAPTOP)[-2:] == ["", "Next: make full"]


MISSING = [
    ("", {"seccomp": False}, "libseccomp", "apt-get install libseccomp2"),
    ("", {"system": "Darwin"}, "Linux (this is Darwin)", "dev container"),
    ("", {"memory_bytes": 2 * GB}, "3 GB of memory", "more memory"),
    ("", {"disk_free_bytes": GB}, "2 GB of free disk", "more disk"),
    (T4, {"torch_cuda": None}, "torch with CUDA", "make setup-cuda"),
    (OLD_T4, {}, "driver 550.54.15", "UV_TORCH_BACKEND=cu126 make setup-cuda"),
    (OLD_T4.replace("550.54.15", "470.256.02"), {}, "driver of 525", "580 or later"),
    (T4, {"unsloth": False}, "Unsloth", "make setup-cuda"),
    (A100, {"compiler": False}, "C compiler and Python.h", "apt-get install gcc python3-dev"),
    (A100.replace("40436", "9000"), {}, "38 GB free on the card (found 8.8)", ""),
]


@pytest.mark.parametrize(("card", "change", "what", "fix"), MISSING)
def test_each_part_that_is_missing_has_a_fix(card, change, what, fix):
    cards = (parse_card(card),) if card else ()
    ((missing, remedy),) = fixes(replace(READY, cards=cards, **change)).items()
    assert what in missing
    assert fix in remedy


REFUSED = [
    ("", None, "found: none"),
    (T4, "13.0", "found: Tesla T4"),
    (A100, None, "needs torch with CUDA"),
    (A100.replace("580", "550"), "13.0", "torch for the driver 550"),
]


@pytest.mark.parametrize(("cards", "torch_cuda", "told"), REFUSED)
def test_a_profile_for_cards_is_refused_where_torch_cannot_use_one(cards, torch_cuda, told):
    machine = replace(READY, cards=(parse_card(cards),) if cards else (), torch_cuda=torch_cuda)
    own = {"model": {"source": "org/model"}, "warmstart": {"kind": "none"}}
    with pytest.raises(ConfigError, match=told):
        require_card(Params.model_validate({"profile": "a100", **own}), machine)


def test_a_model_whose_package_is_missing_is_refused_before_anything_is_made():
    own = {"model": {"source": "package:no-such"}, "warmstart": {"kind": "none"}}
    with pytest.raises(StageError, match="install --no-deps no-such"):
        require_model(Params.model_validate(own))
    require_model(Params.model_validate(own | {"warmstart": {"kind": "champion"}}))
