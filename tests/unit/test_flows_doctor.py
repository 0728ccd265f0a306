"""The doctor's judgement of machines: what fits, what is missing, and what it prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.cards import A100, H200, OLD_T4, T4

from flows.doctor import PROFILES, best_profile, missing_parts, report, require_card
from flows.machine import GraphicsCard, Machine, parse_card
from tasks.config.params import Params
from tasks.errors import ConfigError

ROOT = Path(__file__).parents[2]
GB = 2**30
LAPTOP = Machine(
    system="Linux",
    release="6.8.0",
    python=(3, 11),
    cores=2.0,
    memory_bytes=13 * GB,
    disk_free_bytes=80 * GB,
    torch="2.13.0+cpu",
    torch_cuda=None,
    cards=(),
    cards_fault=None,
    seccomp=True,
    unsloth=False,
    vllm=False,
    smollm2=False,
)
READY = replace(
    LAPTOP,
    memory_bytes=64 * GB,
    torch="2.13.0",
    torch_cuda="13.0",
    unsloth=True,
    vllm=True,
)


def fixes(machine: Machine) -> dict[str, str]:
    return {part.what: part.fix for part in missing_parts(machine, best_profile(machine))}


@pytest.mark.parametrize(
    ("text", "profile"), [(T4, "t4"), (A100, "a100"), (H200, "h200"), (OLD_T4, "t4")]
)
def test_the_largest_profile_that_a_card_fits_is_chosen(text: str, profile: str) -> None:
    assert best_profile(replace(READY, cards=(parse_card(text),))).name == profile


@pytest.mark.parametrize("text", [T4, A100, H200])
def test_a_machine_with_everything_installed_misses_nothing(text: str) -> None:
    machine = replace(READY, cards=(parse_card(text),))
    assert fixes(machine) == {}
    assert report(machine)[-1] == f'Next: make full ARGS="--profile {best_profile(machine).name}"'


def test_each_profile_of_a_card_has_a_file() -> None:
    assert [
        p.name for p in PROFILES if p.card_gb and not (ROOT / f"profiles/{p.name}.yaml").exists()
    ] == []


def test_without_a_card_nano_runs() -> None:
    assert fixes(LAPTOP) == {}
    assert report(LAPTOP)[-1] == "Next: make full"


@pytest.mark.parametrize(
    "card",
    [
        GraphicsCard("Tesla V100", 32510, 32510, "580.1", (7, 0)),
        GraphicsCard("GTX 1660", 6144, 6000, "580.1", (7, 5)),
    ],
)
def test_an_older_or_smaller_card_is_not_used(card: GraphicsCard) -> None:
    assert best_profile(replace(READY, cards=(card,))).name == "nano"


def test_a_build_for_cpus_is_replaced_by_one_that_fits_the_driver() -> None:
    new = replace(READY, cards=(parse_card(T4),), torch="2.13.0+cpu", torch_cuda=None)
    assert fixes(new) == {"torch with CUDA (this is 2.13.0+cpu)": "make setup-cuda"}
    old = replace(new, cards=(parse_card(OLD_T4),), unsloth=False)
    assert set(fixes(old).values()) == {"UV_TORCH_BACKEND=cu126 make setup-cuda"}


def test_the_build_on_pypi_is_refused_below_driver_580() -> None:
    old = replace(READY, cards=(parse_card(OLD_T4),))
    assert fixes(old) == {
        "torch for the driver 550.54.15 (the build for CUDA 13.0 needs 580 or later)": (
            "UV_TORCH_BACKEND=cu126 make setup-cuda"
        )
    }
    assert fixes(replace(old, torch="2.13.0+cu126", torch_cuda="12.6")) == {}


def test_a_driver_too_old_for_any_build_must_be_updated() -> None:
    card = replace(parse_card(OLD_T4), driver="470.256.02")
    ((what, fix),) = fixes(replace(READY, cards=(card,))).items()
    assert what == "a driver of 525 or later (this is 470.256.02)"
    assert fix.startswith("Install the driver 580 or later")


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"seccomp": False}, "libseccomp, for the sandbox", "apt-get install libseccomp2"),
        ({"system": "Darwin"}, "Linux (this is Darwin)", "Open the folder in its dev container."),
        (
            {"memory_bytes": 2 * GB},
            "3 GB of memory (found 2.0 GB)",
            "Use a machine with more memory, or free some.",
        ),
        (
            {"disk_free_bytes": GB},
            "2 GB of free disk (found 1.0 GB)",
            "Use a machine with more disk, or free some.",
        ),
    ],
)
def test_each_part_that_nano_misses_has_a_fix(
    change: dict[str, object], what: str, fix: str
) -> None:
    assert fixes(replace(LAPTOP, **change)) == {what: fix}  # type: ignore[arg-type]


def test_a_card_in_use_and_a_missing_engine_are_named() -> None:
    busy = replace(parse_card(A100), free_mb=9000)
    assert fixes(replace(READY, cards=(busy,), vllm=False)) == {
        "vLLM, in an environment of its own": "make setup-vllm",
        "38 GB free on the card (found 8.8)": "End the processes that nvidia-smi lists.",
    }


def settings(profile: str, source: str = "org/model") -> Params:
    data = {"profile": profile, "model": {"source": source}, "warmstart": {"kind": "none"}}
    return Params.model_validate(data)


@pytest.mark.parametrize(
    ("cards", "torch_cuda", "told"),
    [
        ("", None, r"profile a100 needs a graphics card of .* 8\.0 or later \(found: none\)"),
        (T4, "13.0", r"capability 8\.0 or later \(found: Tesla T4\).* flows\.doctor"),
        (A100, None, r"needs torch with CUDA \(this is 2\.13\.0\)\. Fix: make setup-cuda$"),
        (A100.replace("580", "550"), "13.0", r"torch for the driver 550.*Fix: UV_TORCH_BACKEND=cu"),
    ],
)
def test_a_profile_for_cards_is_refused_where_torch_cannot_use_one(
    cards: str, torch_cuda: str | None, told: str
) -> None:
    machine = replace(READY, cards=(parse_card(cards),) if cards else (), torch_cuda=torch_cuda)
    with pytest.raises(ConfigError, match=told):
        require_card(settings("a100"), machine)


def test_a_smaller_card_another_profile_and_nano_are_not_refused() -> None:
    small = replace(parse_card(A100), memory_mb=24_000, free_mb=20_000)
    require_card(settings("a100"), replace(READY, cards=(small,), unsloth=False))
    for profile, source in (("nano", "org/model"), ("mine", "org/model"), ("a100", "nano")):
        require_card(settings(profile, source), LAPTOP)


def test_a_fix_of_several_parts_is_printed_once() -> None:
    lines = report(replace(LAPTOP, cards=(parse_card(OLD_T4),)))
    assert sum("make setup-cuda" in line for line in lines) == 1
