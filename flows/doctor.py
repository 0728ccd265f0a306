"""Say what this machine can run: the profile that fits, and a command for each missing part.

    python -m flows.doctor [--json]

It only reads, and works before `make setup`. Exit code 0: at least `nano` runs; 1: it does not.
Facts come from `tasks/machine.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tasks.machine import GraphicsCard, Machine, inspect

if TYPE_CHECKING:
    from tasks.params import Params

WIDTH = 80
"""Columns of the printed report."""
PYTHONS = ((3, 11), (3, 12))
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
    vllm: bool = False


PROFILES = (
    ProfileNeeds("nano", memory_gb=3, disk_gb=2),
    # On disk: base, 16-bit twin and merged model, each in models/, DVC's cache and the registry.
    ProfileNeeds("t4", memory_gb=12, disk_gb=60, card_gb=14, capability=(7, 5)),
    ProfileNeeds("a100", memory_gb=24, disk_gb=60, card_gb=38, capability=(8, 0), vllm=True),
    ProfileNeeds("h200", memory_gb=24, disk_gb=60, card_gb=130, capability=(9, 0), vllm=True),
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
    fit = [p for p in PROFILES if not p.card_gb or fitting_card(machine, p)]
    return fit[-1]


def require_card(params: Params, machine: Machine | None = None) -> None:
    """Refuse the settings of a profile for cards on a machine whose card cannot run it.

    The sizes of cards are estimates and settings can change them, so none is refused for its size.

    Args:
        params: settings in force.
        machine: default: this one.

    Raises:
        ConfigError: no card has the compute capability, or driver and torch do not fit.
    """
    from agent.settings import NANO  # not installed before `make setup`
    from tasks.errors import ConfigError

    wanted = next((p for p in PROFILES if p.name == params.profile), PROFILES[0])
    if not wanted.card_gb or params.model.source == NANO:
        return
    machine = machine or inspect()
    card = fitting_card(machine, replace(wanted, card_gb=0.001))
    if card is None:
        found = ", ".join(one.name for one in machine.cards) or machine.cards_fault or "none"
        major, minor = wanted.capability
        raise ConfigError(
            f"profile {wanted.name} needs a graphics card of compute capability {major}.{minor} or "
            f"later (found: {found}). Run python -m flows.doctor to see what this machine can run."
        )
    for part in _missing_for_cuda(machine, card):
        raise ConfigError(f"profile {wanted.name} needs {part.what}. Fix: {part.fix}")


def missing_parts(machine: Machine, profile: ProfileNeeds) -> list[MissingPart]:
    """Parts that a profile misses on a machine whose card it fits."""
    parts = []
    if machine.system != "Linux":
        parts.append(
            MissingPart(
                f"Linux (this is {machine.system})", "Open the folder in its dev container."
            )
        )
    elif not machine.seccomp:
        parts.append(MissingPart("libseccomp, for the sandbox", "apt-get install libseccomp2"))
    if machine.python not in PYTHONS:
        version = ".".join(map(str, machine.python))
        parts.append(
            MissingPart(f"Python 3.11 or 3.12 (this is {version})", "make setup PYTHON=python3.11")
        )
    if machine.torch is None:
        parts.append(MissingPart(f"torch, for {sys.executable}", "make setup"))
    for name, least, found in (
        ("memory", profile.memory_gb, machine.memory_bytes),
        ("free disk", profile.disk_gb, machine.disk_free_bytes),
    ):
        if found < least * 2**30:
            parts.append(
                MissingPart(
                    f"{least:g} GB of {name} (found {_gb(found)} GB)",
                    f"Use a machine with more {name.split()[-1]}, or free some.",
                )
            )
    card = fitting_card(machine, profile)
    return parts + (_missing_for_card(machine, profile, card) if card else [])


def _missing_for_card(
    machine: Machine, profile: ProfileNeeds, card: GraphicsCard
) -> list[MissingPart]:
    """Parts that only a profile for cards needs."""
    parts = _missing_for_cuda(machine, card)
    if not machine.unsloth:
        parts.append(MissingPart("Unsloth", _install(card)))
    if profile.vllm and not machine.vllm:
        parts.append(MissingPart("vLLM, in an environment of its own", "make setup-vllm"))
    if card.free_mb < profile.card_gb * 1024:
        parts.append(
            MissingPart(
                f"{profile.card_gb:g} GB free on the card (found {card.free_mb / 1024:.1f})",
                "End the processes that nvidia-smi lists.",
            )
        )
    return parts


def _install(card: GraphicsCard) -> str:
    """Command that installs the build of torch for the card's driver, and Unsloth."""
    old = card.driver_branch < LEAST_DRIVER[13]
    return f"UV_TORCH_BACKEND={FOR_OLD_DRIVERS} make setup-cuda" if old else "make setup-cuda"


def _missing_for_cuda(machine: Machine, card: GraphicsCard) -> list[MissingPart]:
    """Parts without which torch cannot use the card."""
    parts = []
    if card.driver_branch < LEAST_DRIVER[12]:
        parts.append(
            MissingPart(
                f"a driver of {LEAST_DRIVER[12]} or later (this is {card.driver})",
                f"Install the driver {LEAST_DRIVER[13]} or later, then run this again.",
            )
        )
    elif machine.torch is not None and machine.torch_cuda is None:
        parts.append(MissingPart(f"torch with CUDA (this is {machine.torch})", _install(card)))
    elif machine.torch_cuda is not None:
        least = LEAST_DRIVER.get(int(machine.torch_cuda.partition(".")[0]), LEAST_DRIVER[13])
        if card.driver_branch < least:
            parts.append(
                MissingPart(
                    f"torch for the driver {card.driver} (the build for CUDA {machine.torch_cuda} "
                    f"needs {least} or later)",
                    _install(card),
                )
            )
    return parts


def report(machine: Machine) -> list[str]:
    """Lines for the terminal, at most `WIDTH` columns where words allow it."""
    profile = best_profile(machine)
    missing = missing_parts(machine, profile)
    lines = ["This machine", *_table(_facts(machine)), "", "Profiles", *_table(_fits(machine))]
    if missing:
        lines += ["", f"Missing for {profile.name}"]
        by_fix: dict[str, list[str]] = {}
        for part in missing:
            by_fix.setdefault(part.fix, []).append(part.what)
        for fix, parts in by_fix.items():
            for what in parts:
                lines += textwrap.wrap(f"  - {what}", WIDTH, subsequent_indent="    ")
            lines.append(f"      {fix}")
    else:
        option = "" if profile.name == "nano" else f' ARGS="--profile {profile.name}"'
        lines += ["", f"Next: make full{option}"]
    return lines


def _facts(machine: Machine) -> list[tuple[str, str]]:
    """Label and text of each fact."""
    cards = [
        f"{card.name}, {card.memory_mb / 1024:.1f} GB ({card.free_mb / 1024:.1f} free), compute "
        f"capability {card.capability[0]}.{card.capability[1]}, driver {card.driver}"
        for card in machine.cards
    ]
    build = f"for CUDA {machine.torch_cuda}" if machine.torch_cuda else "for CPUs only"
    return [
        ("system", f"{machine.system} {machine.release}"),
        ("python", ".".join(map(str, machine.python))),
        ("cores", f"{machine.cores:g}"),
        ("memory", f"{_gb(machine.memory_bytes)} GB"),
        ("disk", f"{_gb(machine.disk_free_bytes)} GB free"),
        ("torch", f"{machine.torch}, {build}" if machine.torch else "not installed"),
        *[("card", text) for text in cards or [f"none ({machine.cards_fault or 'no driver'})"]],
        ("sandbox", "libseccomp found" if machine.seccomp else "libseccomp not found"),
        ("unsloth", "installed" if machine.unsloth else "not installed"),
        ("vllm", "installed" if machine.vllm else "not installed"),
        ("smollm2", machine.smollm2),
    ]


def _fits(machine: Machine) -> list[tuple[str, str]]:
    """Name of each profile, and whether it runs."""
    rows = []
    for profile in PROFILES:
        missing = len(missing_parts(machine, profile))
        if profile.card_gb and fitting_card(machine, profile) is None:
            major, minor = profile.capability
            text = (
                f"needs a card with {profile.card_gb:g} GB and compute capability {major}.{minor}"
            )
        elif missing:
            text = f"fits, {missing} part{'s' if missing > 1 else ''} missing"
        else:
            text = "runs"
        rows.append((profile.name, text))
    return rows


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for label, text in rows:
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"  {label:9}", subsequent_indent=" " * 11
        )
    return lines


def _gb(size: int) -> str:
    return f"{size / 2**30:.1f}"


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
        found = {
            "machine": asdict(machine),
            "profile": best_profile(machine).name,
            "missing": [asdict(part) for part in missing_parts(machine, best_profile(machine))],
            "nano_runs": runs,
        }
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(report(machine)) + "\n")
    return 0 if runs else 1


if __name__ == "__main__":
    sys.exit(main())
