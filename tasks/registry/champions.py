"""Champions of the registry: the alias, the tags of former champions, rollback, and the list.

The alias alone decides which version serves. Everything else is written before it moves, so that
a process killed at any moment leaves the old champion or the new one.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tasks.errors import StageError
from tasks.registry import versions

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

DECISION = "promotion.report"
"""Tag of a version: the decision on it, as JSON."""
PROFILE = "profile"
"""Tag of a version: the profile that made it; figures of `quick` mean nothing."""
SINCE = "champion_since"
PREVIOUS = "previous_champion"
"""Tag of a version: the version that it replaced."""
ROLLED_BACK = "rolled_back"
"""Tag of a version: when it was rolled back; it is not promoted again automatically."""


def write_decision(version: ModelVersion, report: dict[str, Any]) -> None:
    """Write the decision as tags of the version, without moving the alias.

    `DECISION` has all of it, the others what people look for.

    Raises:
        StageError: the registry fails.
    """
    tags = {
        "verdict": report["verdict"],
        "reason": report["reason"],
        "opponent": report["opponent"]["version"] or report["opponent"]["kind"],
        "interval": json.dumps(
            [
                [round(bound, 4) for bound in figures["primary_objective"]["interval"]]
                for figures in report["sets"]
            ]
        ),
    }
    _tag(version, {f"promotion.{key}": str(value) for key, value in tags.items()})
    # Last: if this tag is set, so are the others.
    _tag(version, {DECISION: json.dumps(report)})


def crown(
    version: ModelVersion, instead_of: ModelVersion | None, previous: str | None = None
) -> None:
    """Make a version champion; moving the alias is the last thing done.

    Args:
        version: the new champion; no longer counts as rolled back.
        instead_of: the present champion.
        previous: the version that a rollback leads to; None means `instead_of`.

    Raises:
        StageError: the registry fails, or another version became champion meanwhile.
    """
    name, number = version.name, str(version.version)
    _check_still(version, instead_of)
    if previous is None:
        previous = str(instead_of.version) if instead_of else ""
    _tag(version, {SINCE: _now(), PREVIOUS: previous})
    with versions.registry(f"{versions.named(version)} cannot become champion") as store:
        if ROLLED_BACK in version.tags:
            store.delete_model_version_tag(name, number, ROLLED_BACK)
        store.set_registered_model_tag(name, versions.LAST_CHAMPION, number)
    _check_still(version, instead_of)
    with versions.registry(f"{versions.named(version)} cannot become champion") as store:
        store.set_registered_model_alias(name, "champion", number)


def _check_still(version: ModelVersion, champion: ModelVersion | None) -> None:
    now = versions.by_alias(version.name, "champion")
    if (now and str(now.version)) != (champion and str(champion.version)):
        raise StageError(
            f"{versions.named(version)} did not become champion (meanwhile "
            f"{versions.named(now) if now else 'no version'} is). Run promote again."
        )


def rollback(name: str, to: str | None) -> tuple[ModelVersion | None, ModelVersion]:
    """Make the previous champion, or the version `to`, champion again.

    Returns:
        The former champion (None if it was deleted) and the new one.

    Raises:
        StageError: the previous champion or the version does not exist, or is unreadable.
    """
    now = versions.by_alias(name, "champion")
    if to is None:
        if now is None:
            raise StageError(f"rollback: {name} has no champion. Name a version with --to VERSION.")
        to = now.tags.get(PREVIOUS, "")
        if not to:
            raise StageError(
                f"rollback: {versions.named(now)} is the first champion. "
                "Name a version with --to VERSION."
            )
    target = versions.get_version(name, to)
    if now is not None and str(now.version) == to:
        raise StageError(f"rollback: {versions.named(target)} is already champion.")
    versions.download(target)  # an unreadable version must not serve
    if now is not None:
        _tag(now, {ROLLED_BACK: _now(), "rolled_back_to": to})
    # The next rollback leads one step further back, not forth again. A newer version named with
    # `to` replaces the present champion, as a promotion does.
    back = now is None or to == now.tags.get(PREVIOUS) or int(to) < int(now.version)
    crown(target, instead_of=now, previous=target.tags.get(PREVIOUS) if back else None)
    return now, target


def table(name: str) -> Table:
    """Table of all versions of a model, the newest first."""
    drawn = Table(title=f"Versions of {name}", title_justify="left")
    for column in ("version", "aliases", "F1 greedy", "reward", "promotion", "champion"):
        drawn.add_column(column)
    model = versions.registered(name)
    aliases = model.aliases if model else {}
    for version in versions.list_versions(name):
        number, tags = str(version.version), version.tags
        drawn.add_row(
            number,
            "\n".join(sorted(alias for alias, holder in aliases.items() if str(holder) == number)),
            _before_after(tags, "f1_greedy"),
            _before_after(tags, "reward"),
            _verdict(tags) + ("\nprofile quick" if tags.get(PROFILE) == "quick" else ""),
            _reign(tags),
        )
    return drawn


def _before_after(tags: dict[str, str], score: str) -> str:
    both = [tags.get(f"evaluation.{score}.{when}") for when in ("before", "after")]
    return " -> ".join(f"{float(value):.3f}" for value in both if value is not None)


def _verdict(tags: dict[str, str]) -> str:
    if DECISION not in tags:  # written last: without it others may be missing
        return "not compared"
    intervals = json.loads(tags["promotion.interval"])
    return "\n".join(
        [
            f"{tags['promotion.verdict']} against {tags['promotion.opponent']}",
            *(f"{low:+.3f} to {high:+.3f}" for low, high in intervals),
        ]
    )


def _reign(tags: dict[str, str]) -> str:
    names = {SINCE: "since", ROLLED_BACK: "rolled back"}
    return "\n".join(f"{name} {tags[tag][:16]}" for tag, name in names.items() if tag in tags)


def _tag(version: ModelVersion, tags: dict[str, str]) -> None:
    with versions.registry(f"tags of {versions.named(version)} cannot be written") as store:
        for key, value in tags.items():
            store.set_model_version_tag(version.name, str(version.version), key, value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
