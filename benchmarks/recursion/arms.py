"""Arms of the comparison: what a policy may do, and the demonstrations of its best plan.

Arms share the data, the recipe of the base and the number of episodes. They differ in the limits of
the environment, and in what one conversation may hold. Half of a base's demonstrations are of its
arm's best plan: readers, or pages for one agent alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.nano.settings import ReadingMixture

WINDOW = 8192
"""Tokens of the conversation of the arm with a large window."""
_STAGES = ("train", "evaluate")
_ALONE = ["env.limits.max_frames=1", "env.limits.max_turns=64"]


@dataclass(frozen=True)
class Arm:
    """Limits of a policy."""

    sets: tuple[str, ...]
    """Settings of the environment and of the sampling, `section.key=value`."""
    experts: Mapping[str, tuple[str, ...]]
    """Settings of bases that show one plan alone, by the plan's name."""
    base: tuple[str, ...] = ()
    """Settings of a base of its own; empty for the base of the default run."""
    trained: bool = True
    """Whether it is trained; otherwise only bases that show one plan alone are measured."""


def _sampled(*settings: str) -> list[str]:
    return [f"{stage}.generation.{setting}" for stage in _STAGES for setting in settings]


def _expert(kind: str, *more: str) -> tuple[str, ...]:
    """Demonstrations of one plan that looks at all sentences and keeps those of the field."""
    mixture = ReadingMixture()
    wanted = {"plan": kind, "most": "all", "keep": "field"} | dict(m.split("=") for m in more)
    shares = [
        f"{name}.{key}={float(key == choice)}"
        for name, choice in wanted.items()
        for key in sorted({*getattr(mixture, name), choice})
    ]
    return tuple(f"warmstart.nano.reading.{share}" for share in [*shares, "budget=0.0"])


_PAGES = (
    *("warmstart.nano.reading.plan.readers=0.15", "warmstart.nano.reading.plan.pages=0.5"),
    "warmstart.nano.reading.forgetful=0.0",
)
_LONG_TURNS = _sampled("max_turn_tokens=320")
_STUFFED = tuple(
    f"warmstart.nano.reading.page.{size}={share}"
    for size, share in {"8": 0.1, "12": 0.25, "24": 0.15, "144": 0.5}.items()
)
_MANY = ("prepare.synthetic.lexicon=1600",)
_NARROW = (*_sampled("max_frame_tokens=256"),)
_LARGE = (f"warmstart.nano.model.context={WINDOW}", "warmstart.nano.batch_tokens=8192")

RECURSIVE_MANY_NAMES = "recursive, many names"
WITHOUT_MANY_NAMES = ("alone, many names", "alone, forgetful, many names")
"""Arms of one agent with more names than the window holds."""

ARMS: dict[str, Arm] = {
    "recursive": Arm(
        (), {"readers": _expert("readers", "size=4"), "children": _expert("children")}
    ),
    "recursive, budgets": Arm(("train.budget.share=0.5",), {}),
    "readers only": Arm(("env.limits.max_depth=0",), {}),
    "stuffed": Arm(
        ("env.limits.max_frames=1", "env.limits.max_turns=3", *_LONG_TURNS),
        {"all at once": (*_expert("pages", "page=144"), "warmstart.nano.reading.forgetful=0.0")},
        base=(*_PAGES, *_STUFFED),
    ),
    "alone": Arm(
        (*_ALONE, *_LONG_TURNS),
        {
            "pages": (*_expert("pages", "page=12"), "warmstart.nano.reading.forgetful=0.0"),
            "names": _expert("names"),
            "recite": _expert("recite"),
        },
        base=_PAGES,
    ),
    "alone, forgetful": Arm(
        (*_ALONE, *_LONG_TURNS, *_sampled("forget_turns=true")),
        {"pages": (*_expert("pages", "page=12"), "warmstart.nano.reading.forgetful=1.0")},
        base=(*_PAGES[:2], "warmstart.nano.reading.forgetful=1.0"),
    ),
    "alone, window 8,192": Arm(
        (*_ALONE, *_LONG_TURNS, *_sampled(f"max_frame_tokens={WINDOW}")),
        {
            "pages": (
                *_expert("pages", "page=24"),
                "warmstart.nano.reading.forgetful=0.0",
                *_LARGE,
            )
        },
        base=(*_PAGES, *_LARGE),
    ),
    RECURSIVE_MANY_NAMES: Arm(
        _NARROW, {"readers": (*_expert("readers", "size=4"), *_MANY)}, base=_MANY
    ),
    "alone, many names": Arm(
        (*_ALONE, *_LONG_TURNS, *_NARROW),
        {
            "names": (*_expert("names"), *_MANY),
            "pages": (*_expert("pages", "page=8"), "warmstart.nano.reading.forgetful=0.0", *_MANY),
        },
        trained=False,
    ),
    "alone, forgetful, many names": Arm(
        (*_ALONE, *_LONG_TURNS, *_NARROW, *_sampled("forget_turns=true")),
        {
            "pieces": (
                *_expert("pieces", "size=24"),
                "warmstart.nano.reading.forgetful=1.0",
                *_MANY,
            ),
            "pages": (*_expert("pages", "page=8"), "warmstart.nano.reading.forgetful=1.0", *_MANY),
        },
        trained=False,
    ),
}
"""Every arm by its name in the figure. Trees have depth 2; with readers only, 1.

With many names, a list of a field's names is longer than the window of 256 tokens.
"""

WITHOUT = ("stuffed", "alone", "alone, forgetful")
"""Arms of one agent with the window of the recursive one."""
BUDGETED = ("recursive", "recursive, budgets")
"""Arms that answer under budgets too."""
CONTROLLED = ("recursive", "alone", "alone, forgetful")
"""Arms that are trained once more with printed fields."""
