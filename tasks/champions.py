"""Who is champion: the alias, the tags that remember who was, going back, and the list.

The alias alone says who serves. Everything else is written before it moves, so that a process
killed at any moment leaves the old champion or the new one.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tasks import register
from tasks.errors import StageError

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

DECISION = "promotion.report"
"""Tag of a version: the decision on it, as JSON."""
SINCE = "champion_since"
PREVIOUS = "previous_champion"
"""Tag of a version: the version that it replaced."""
ANNOUNCED = "promotion.announced"
"""Tag of a version: when the world was told that it won; `no` until then."""
ROLLED_BACK = "rolled_back"
"""Tag of a version: when it was rolled back; it is not promoted again by itself."""


def write_decision(version: ModelVersion, report: dict[str, Any]) -> None:
    """The decision as tags of the version; the alias is not touched.

    Raises:
        StageError: the registry fails.
    """
    tags = {
        "verdict": report["verdict"],
        "reason": report["reason"],
        "mode": report["rule"]["mode"],
        "level": report["rule"]["level"],
        "opponent": report["opponent"]["version"] or report["opponent"]["kind"],
        "problems": report["problems"],
        "sets": len(report["sets"]),
        "n": json.dumps([figures["n"] for figures in report["sets"]]),
        "interval": json.dumps(
            [
                [round(bound, 4) for bound in figures["primary_objective"]["interval"]]
                for figures in report["sets"]
            ]
        ),
        "at": report["decided_at"],
    }
    told = {f"promotion.{key}": str(value) for key, value in tags.items()}
    _tag(version, {**told, ANNOUNCED: "no"})
    # Last: whoever finds it finds the others.
    _tag(version, {DECISION: json.dumps(report)})


def crown(
    version: ModelVersion, instead_of: ModelVersion | None, previous: str | None = None
) -> None:
    """Make a version champion; moving the alias is the last thing done.

    Args:
        version: the new champion; no longer counts as rolled back.
        instead_of: who is champion now.
        previous: the version that a rollback from it leads to, unless to `instead_of`.

    Raises:
        StageError: the registry fails, or somebody else became champion meanwhile.
    """
    name, number = version.name, str(version.version)
    _check_still(version, instead_of)
    if previous is None:
        previous = str(instead_of.version) if instead_of else ""
    _tag(version, {SINCE: _now(), PREVIOUS: previous})
    with register.registry(f"{register.named(version)} cannot become champion") as store:
        if ROLLED_BACK in version.tags:
            store.delete_model_version_tag(name, number, ROLLED_BACK)
        store.set_registered_model_tag(name, register.LAST_CHAMPION, number)
    _check_still(version, instead_of)
    with register.registry(f"{register.named(version)} cannot become champion") as store:
        store.set_registered_model_alias(name, "champion", number)


def is_news(champion: ModelVersion) -> bool:
    """Whether it is champion by a promotion of which nobody was told."""
    tags = champion.tags
    return tags.get("promotion.verdict") == "promoted" and tags.get(ANNOUNCED) == "no"


def announced(champion: ModelVersion) -> None:
    """Write down that the promotion was told.

    Raises:
        StageError: the registry fails.
    """
    _tag(champion, {ANNOUNCED: _now()})


def _check_still(version: ModelVersion, champion: ModelVersion | None) -> None:
    now = register.by_alias(version.name, "champion")
    if (now and str(now.version)) != (champion and str(champion.version)):
        raise StageError(
            f"{register.named(version)} did not become champion: meanwhile "
            f"{register.named(now) if now else 'nobody'} is; compare with it: run promote again"
        )


def rollback(name: str, to: str | None) -> tuple[ModelVersion | None, ModelVersion]:
    """Make the previous champion, or the version `to`, champion again.

    Returns:
        Who was champion (None where the version was deleted) and who is now.

    Raises:
        StageError: there is no previous champion, no such version, or its artifact is unreadable.
    """
    now = register.by_alias(name, "champion")
    if to is None:
        if now is None:
            raise StageError(f"rollback: {name} has no champion; name a version with --to VERSION")
        to = now.tags.get(PREVIOUS, "")
        if not to:
            raise StageError(
                f"rollback: {register.named(now)} is the first champion, there is none before it; "
                "name a version with --to VERSION"
            )
    target = register.version(name, to)
    if now is not None and str(now.version) == to:
        raise StageError(f"rollback: {register.named(target)} is champion already")
    register.download(target)  # what cannot be read must not serve
    if now is not None:
        _tag(now, {ROLLED_BACK: _now(), "rolled_back_to": to})
    if is_news(target):  # a promotion whose run was killed: whoever goes back to it knows it
        announced(target)
    # Going back leads one step further back the next time, and not forth again. A newer version
    # that is named replaces the present champion, as a promotion does.
    back = now is None or to == now.tags.get(PREVIOUS) or int(to) < int(now.version)
    crown(target, instead_of=now, previous=target.tags.get(PREVIOUS) if back else None)
    return now, target


def table(name: str) -> Table:
    """All versions of a model, the newest first, with what is known of each."""
    drawn = Table(title=f"Versions of {name}", title_justify="left")
    for column in ("version", "aliases", "F1 greedy", "reward", "promotion", "champion"):
        drawn.add_column(column)
    model = register.registered(name)
    aliases = model.aliases if model else {}
    for version in register.versions(name):
        number, tags = str(version.version), version.tags
        drawn.add_row(
            number,
            "\n".join(sorted(alias for alias, holder in aliases.items() if str(holder) == number)),
            _before_after(tags, "f1_greedy"),
            _before_after(tags, "reward"),
            _verdict(tags),
            _reign(tags),
        )
    return drawn


def _before_after(tags: dict[str, str], score: str) -> str:
    both = [tags.get(f"evaluation.{score}.{when}") for when in ("before", "after")]
    return " -> ".join(f"{float(value):.3f}" for value in both if value is not None)


def _verdict(tags: dict[str, str]) -> str:
    if DECISION not in tags:  # the last one written: without it others may be missing
        return "not compared"
    intervals = json.loads(tags["promotion.interval"])
    return "\n".join(
        [
            f"{tags['promotion.verdict']} against {tags['promotion.opponent']}",
            *(f"{low:+.3f} to {high:+.3f}" for low, high in intervals),
        ]
    )


def _reign(tags: dict[str, str]) -> str:
    told = []
    if SINCE in tags:
        told.append(f"since {tags[SINCE][:16]}")
    if ROLLED_BACK in tags:
        told.append(f"rolled back {tags[ROLLED_BACK][:16]}")
    return "\n".join(told)


def _tag(version: ModelVersion, tags: dict[str, str]) -> None:
    with register.registry(f"tags of {register.named(version)} cannot be written") as store:
        for key, value in tags.items():
            store.set_model_version_tag(version.name, str(version.version), key, value[:5000])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
