"""Say what this machine can run: the profile that fits, and a command for each missing part.

    python -m flows.doctor [--json]

It only reads, and works before `make setup`. Exit code 0: at least `nano` runs; 1: it does not.
Facts come from `flows/machine.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from flows.machine import GraphicsCard, Machine, inspect

if TYPE_CHECKING:
    from tasks.config.params import Params

LEAST_DRIVER = {13: 580, 12: 525}
"""Least driver branch by the major CUDA version of a build of torch."""
FOR_OLD_DRIVERS = "cu126"
"""Build of torch for drivers below 580: the one on PyPI is for CUDA 13.0."""


@dataclass(frozen=True)
class ProfileNeeds:
    """Resources that a profile needs. Numbers for cards are estimates."""

    name: str
    memory_gb: float
    disk_gb: float
    card_gb: float = 0.0
    """Memory of the card; 0: it needs none."""
    capability: tuple[int, int] = (0, 0)
    unsloth: bool = False
    """Whether Unsloth teaches its demonstrations."""


PROFILES = (
    ProfileNeeds("nano", memory_gb=3, disk_gb=2),
    # On disk: base, 16-bit twin and merged model, each in models/, DVC's cache and the registry.
    ProfileNeeds("t4", memory_gb=12, disk_gb=60, card_gb=14, capability=(7, 5), unsloth=True),
    ProfileNeeds("a100", memory_gb=24, disk_gb=60, card_gb=38, capability=(8, 0)),
    ProfileNeeds("h200", memory_gb=24, disk_gb=60, card_gb=76, capability=(8, 0)),
)
"""Profiles from the smallest to the largest; each has a file in profiles/, except nano."""


@dataclass(frozen=True)
class MissingPart:
    """Something without which a profile does not run."""

    what: str
    fix: str
    """Command, or sentence, that provides it."""


def fitting_card(machine: Machine, profile: ProfileNeeds) -> GraphicsCard | None:
    """The card that a profile runs on; None if it needs none or no card is large enough."""
    fit = [
        card
        for card in machine.cards
        if card.memory_mb >= profile.card_gb * 1024 and card.capability >= profile.capability
    ]
    return max(fit, key=lambda card: card.free_mb, default=None) if profile.card_gb else None


def best_profile(machine: Machine) -> ProfileNeeds:
    """The largest profile that a card of the machine fits; nano without one."""
    return [p for p in PROFILES if not p.card_gb or fitting_card(machine, p)][-1]


def require_model(params: Params) -> None:
    """Refuse a `model.source` that cannot be read, or for which disk or memory have no room.

    Raises:
        StageError: the message says what is missing. No weights are fetched for it.
    """
    from agent.models import base_model, model_files
    from agent.settings import NANO  # not installed before `make setup`
    from tasks import paths
    from tasks.errors import as_stage_error

    if params.model.source != NANO and params.warmstart.kind != "champion":
        with as_stage_error():
            base_model.require_source(params.model, paths.BASE, model_files.this_device())


def require_card(params: Params, machine: Machine | None = None) -> None:
    """Refuse a profile that no card here can run.

    The sizes of cards are estimates and settings can change them, so none is refused for its size.

    Args:
        params: settings in force.
        machine: default: this one.

    Raises:
        ConfigError: no card has the compute capability, or driver and torch do not fit.
    """
    from agent.settings import NANO
    from tasks.errors import ConfigError

    wanted = next((p for p in PROFILES if p.name == params.profile), PROFILES[0])
    if not wanted.card_gb or params.model.source == NANO:
        return
    machine = machine or inspect()
    able = [card for card in machine.cards if card.capability >= wanted.capability]
    if not able:
        cards = ", ".join(one.name for one in machine.cards) or machine.cards_fault or "none"
        major, minor = wanted.capability
        raise ConfigError(
            f"profile {wanted.name} needs a graphics card of compute capability {major}.{minor} or "
            f"later (found: {cards}). Run python -m flows.doctor to see what this machine can run."
        )
    for part in _missing_for_cuda(machine, max(able, key=lambda card: card.free_mb)):
        raise ConfigError(f"profile {wanted.name} needs {part.what}. Fix: {part.fix}")


def missing_parts(machine: Machine, profile: ProfileNeeds) -> list[MissingPart]:
    """Parts that a profile misses on a machine whose card it fits."""
    linux = machine.system == "Linux"
    memory, disk = machine.memory_bytes / 2**30, machine.disk_free_bytes / 2**30
    seccomp = machine.seccomp or not linux
    needs = [
        (linux, f"Linux (this is {machine.system})", "Open the folder in its dev container."),
        (seccomp, "libseccomp, for the sandbox", "apt-get install libseccomp2"),
        (machine.torch is not None, f"torch, for {sys.executable}", "make setup"),
        (
            memory >= profile.memory_gb,
            f"{profile.memory_gb:g} GB of memory (found {memory:.1f} GB)",
            "Use a machine with more memory, or free some.",
        ),
        (
            disk >= profile.disk_gb,
            f"{profile.disk_gb:g} GB of free disk (found {disk:.1f} GB)",
            "Use a machine with more disk, or free some.",
        ),
    ]
    card = fitting_card(machine, profile)
    if card is not None:
        free = f"{profile.card_gb:g} GB free on the card (found {card.free_mb / 1024:.1f})"
        enough = card.free_mb >= profile.card_gb * 1024
        needs.append((machine.unsloth or not profile.unsloth, "Unsloth", _install(card)))
        needs.append((enough, free, "End the processes that nvidia-smi lists."))
    missing = [MissingPart(what, fix) for there, what, fix in needs if not there]
    return missing + (_missing_for_cuda(machine, card) if card else [])


def _install(card: GraphicsCard) -> str:
    """Command that installs the build of torch for the card's driver, and Unsloth."""
    old = card.driver_branch < LEAST_DRIVER[13]
    return f"UV_TORCH_BACKEND={FOR_OLD_DRIVERS} make setup-cuda" if old else "make setup-cuda"


def _missing_for_cuda(machine: Machine, card: GraphicsCard) -> list[MissingPart]:
    """The part without which torch cannot use the card, or Triton cannot build its kernels."""
    if not machine.compiler:
        what = "a C compiler and Python.h, for Triton"
        return [MissingPart(what, "apt-get install gcc python3-dev")]
    if card.driver_branch < LEAST_DRIVER[12]:
        what = f"a driver of {LEAST_DRIVER[12]} or later (this is {card.driver})"
        fix = f"Install the driver {LEAST_DRIVER[13]} or later, then run this again."
        return [MissingPart(what, fix)]
    if machine.torch_cuda is None:
        what = f"torch with CUDA (this is {machine.torch})"
        return [MissingPart(what, _install(card))] if machine.torch else []
    least = LEAST_DRIVER.get(int(machine.torch_cuda.partition(".")[0]), LEAST_DRIVER[13])
    what = (
        f"torch for the driver {card.driver} (the build for CUDA {machine.torch_cuda} needs "
        f"{least} or later)"
    )
    return [MissingPart(what, _install(card))] if card.driver_branch < least else []


def report(machine: Machine) -> list[str]:
    """Lines for the terminal."""
    profile = best_profile(machine)
    missing = missing_parts(machine, profile)
    lines = [f"{label:10}{text}" for label, text in _facts(machine)]
    if missing:
        lines += ["", f"Missing for {profile.name}"]
        for fix in dict.fromkeys(part.fix for part in missing):
            lines += [f"  - {part.what}" for part in missing if part.fix == fix]
            lines.append(f"      {fix}")
    else:
        option = "" if profile.name == "nano" else f' ARGS="--profile {profile.name}"'
        data = ["First get the data: docs/trials.md"] if option else []
        lines += ["", *data, f"Next: make full{option}"]
    return lines


def _facts(machine: Machine) -> list[tuple[str, str]]:
    """Label and text of each fact."""
    cards = [
        f"{card.name}, {card.memory_mb / 1024:.1f} GB ({card.free_mb / 1024:.1f} free), compute "
        f"capability {card.capability[0]}.{card.capability[1]}, driver {card.driver}"
        for card in machine.cards
    ]
    sizes = [f", {p.name} (card of {p.card_gb:g} GB)" for p in PROFILES if p.card_gb]
    build = f"for CUDA {machine.torch_cuda}" if machine.torch_cuda else "for CPUs only"
    installed = {True: "installed", False: "not installed"}
    return [
        ("system", f"{machine.system} {machine.release}"),
        ("python", ".".join(map(str, machine.python))),
        ("memory", f"{machine.memory_bytes / 2**30:.1f} GB"),
        ("disk", f"{machine.disk_free_bytes / 2**30:.1f} GB free"),
        ("torch", f"{machine.torch}, {build}" if machine.torch else "not installed"),
        *[("card", text) for text in cards or [f"none ({machine.cards_fault or 'no driver'})"]],
        ("sandbox", f"libseccomp {installed[machine.seccomp]}"),
        ("unsloth", installed[machine.unsloth]),
        ("profiles", f"nano{''.join(sizes)}"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.doctor", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    machine = inspect()
    runs = not missing_parts(machine, PROFILES[0])
    if options.json:
        body = {
            "machine": asdict(machine),
            "profile": best_profile(machine).name,
            "missing": [asdict(part) for part in missing_parts(machine, best_profile(machine))],
            "nano_runs": runs,
        }
        sys.stdout.write(json.dumps(body, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(report(machine)) + "\n")
    return 0 if runs else 1


if __name__ == "__main__":
    sys.exit(main())
