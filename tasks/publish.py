"""Publish the champion and its problems on the Hub: `rlm publish`.

The model's repository has the merged weights, the tokenizer and a card with the figures of the
version. The data set has the problems of data/problems; only splits that strangers may
play have their answers. The Space is deployed by the stage `deploy`.

All files are in reports/publish first. Without `push` nothing leaves this machine. A push changes
each repository in one commit, the data set first; running again continues after any fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from agent.settings import NANO, PACKAGE, ModelSettings
from env.problems.schema import CANDIDATES, COLUMNS, Problem, to_row
from env.problems.store import ProblemStore
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.hub_client import Hub
from tasks.deployment.space import STRANGERS
from tasks.deployment.space_problems import GUESSABLE
from tasks.errors import ConfigError, StageError, as_stage_error
from tasks.io import replacing, require, write_json, write_text
from tasks.prepare import SPLITS, write_parquet
from tasks.registry import versions
from tasks.reporting import cards
from tasks.tracking import lineage

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

FOLDER = Path("reports/publish")
MARK = "rlm.json"
"""File of each published repository: its version. Only marked repositories are changed."""
SETTINGS = "publish.model and publish.dataset"
_SMALL = {
    *("config.json", "generation_config.json", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "chat_template.json"),
}
"""Files beside the weights: config, tokenizer, chat template. Others may not be meant for all."""
_PATHS = ("_name_or_path", "name_or_path")
"""Keys of these files that may contain a path of this machine."""


class RegisteredChampion(NamedTuple):
    """The champion of the registry, with all that its card says."""

    version: ModelVersion
    figures: dict[str, cards.BeforeAfter]
    params: Params
    """Settings that it was made with."""


class HubRepository(NamedTuple):
    """A repository on the Hub and its content."""

    name: str
    """OWNER/NAME; NAME before the owner is known."""
    kind: Literal["model", "dataset"]
    folder: Path


def publish(params: Params, push: bool) -> Iterator[str]:
    """Write both repositories' files; with `push`, upload them.

    Args:
        params: settings; `publish` names the repositories and licences.
        push: whether to upload.

    Yields:
        Lines for the user.

    Raises:
        ConfigError: a name, a licence or the token is missing or wrong, or a repository belongs
            to somebody else.
        StageError: there is no champion, its problems are missing, or the Hub fails.
    """
    settings = params.publish
    license = check(params)
    hub = Hub(SETTINGS) if push else None
    champion = find_champion(params.register_.model_name)
    source = champion.params.prepare.source
    if settings.dataset_license is None and source != "synthetic":
        raise ConfigError(
            f"the problems of prepare.source {source} contain documents of others. Set "
            "publish.dataset_license to a licence that their owners permit."
        )
    names = [settings.dataset, settings.model]
    names = [hub.full_name(name) if hub else name for name in names]
    tasks = HubRepository(names[0], "dataset", FOLDER / "tasks")
    model = HubRepository(names[1], "model", FOLDER / "model")
    write_tasks(tasks, champion, settings.dataset_license or license)
    write_model(model, champion, license, tasks.name)
    for repository in (tasks, model):
        yield from listing(repository, settings.private)
    if hub is None:
        yield f"Nothing was uploaded. Read {FOLDER}, then add --push."
        return
    for repository in (tasks, model):  # both, before either is changed
        hub.claim(repository.name, repository.kind, private=settings.private, mark=MARK)
    for repository in (tasks, model):
        commit = hub.push(*repository, MARK)
        prefix = "datasets/" if repository.kind == "dataset" else ""
        yield f"Uploaded: {hub.endpoint}/{prefix}{repository.name} at {commit[:8]}"


def check(params: Params) -> str:
    """The model's licence, once the names are found valid.

    Raises:
        ConfigError: a name is malformed or taken, or no licence is set.
        StageError: the problems are missing.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    settings = params.publish
    for key, name in (("model", settings.model), ("dataset", settings.dataset)):
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise ConfigError(
                f"publish.{key}: {str(error).rstrip('.')}. Write OWNER/NAME or NAME."
            ) from None
    if settings.dataset.rpartition("/")[2] == params.deploy.space.dataset.rpartition("/")[2]:
        raise ConfigError(
            f"publish.dataset {settings.dataset} has the name of deploy.space.dataset, which is "
            "private and contains all answers. Choose another name."
        )
    if settings.license is None:
        raise ConfigError(
            "no licence is set. Add --license apache-2.0, or another identifier of the Hub that "
            "the base model's licence permits, or set publish.license."
        )
    require(paths.PROBLEMS, "prepare")
    return settings.license


def find_champion(name: str) -> RegisteredChampion:
    """The champion, whose problems are those of data/problems.

    Raises:
        StageError: it does not exist, or data/problems are those of another run.
    """
    version = versions.champion(name)
    if version is None:
        raise StageError(
            f"{name} has no champion. Train one with `rlm run`, or name a version with "
            "`rlm rollback --to VERSION`."
        )
    report = paths.PREPARED
    require(report, "prepare")
    here = lineage.files_hash([report], report.parent)
    if version.tags.get("data_report", here) != here:
        raise StageError(
            f"{paths.PROBLEMS} are not the problems of {versions.named(version)}, the champion: "
            "they were prepared again. Restore dvc.lock of its run and run `dvc checkout data`, "
            "or train with `rlm run`."
        )
    return RegisteredChampion(version, cards.read_figures(version.tags), versions.settings(version))


@as_stage_error()
def write_tasks(tasks: HubRepository, champion: RegisteredChampion, license: str) -> None:
    """Write the data set: a Parquet file a split, card and mark.

    Raises:
        StageError: the problems cannot be read.
    """
    params = champion.params
    store = ProblemStore.load(paths.PROBLEMS)
    synthetic = params.prepare.source == "synthetic"
    with replacing(tasks.folder) as folder:
        (folder / "data").mkdir(parents=True)
        for split in SPLITS:
            problems = map(store.get, sorted(store.ids(split)))
            rows = [public_row(problem, split in STRANGERS, synthetic) for problem in problems]
            # All splits have the same columns, of which some are null.
            write_parquet(folder / f"data/{split}.parquet", rows, (*COLUMNS, CANDIDATES))
        card = cards.dataset_card(
            {split: len(store.ids(split)) for split in SPLITS},
            license,
            name=tasks.name,
            opened=list(STRANGERS),
            guessable=synthetic and params.prepare.synthetic.seed < GUESSABLE,
            weights=params.rewards.weights.model_dump(),
        )
        write_text(folder / "README.md", card)
        write_mark(folder, champion)


def public_row(problem: Problem, opened: bool, synthetic: bool) -> dict[str, str]:
    """Row of a problem; unless it is opened, without all that follows from its answer.

    Args:
        problem: with its gold.
        opened: whether the answer may be read.
        synthetic: whether its difficulty is a level of the generator.
    """
    if opened:
        return to_row(problem)
    row = to_row(problem)
    hidden = {"tier", "evidence", CANDIDATES} | (set() if synthetic else {"difficulty"})
    return {name: text for name, text in row.items() if name not in hidden}


def write_model(
    model: HubRepository, champion: RegisteredChampion, license: str, dataset: str
) -> None:
    """Write the model: links to its weights, tokenizer, card and mark.

    Raises:
        StageError: the artifact is gone.
    """
    source = versions.download(champion.version)
    params, tags = champion.params, champion.version.tags
    base, on_hub = named_base(params.model)
    kinds = {"nano": "lessons on generated problems", "sft": "supervised, on demonstrations"}
    kinds["auto"] = f"{kinds['sft']}, unless it earned enough without"
    kinds |= {"champion": "an earlier version of this model", "none": "none"}
    with replacing(model.folder) as folder:
        folder.mkdir()
        for path in sorted(source.iterdir()):
            if path.suffix == ".safetensors":
                (folder / path.name).symlink_to(path.resolve())
            elif path.name in _SMALL:
                (folder / path.name).write_bytes(without_paths(path))
        card = cards.model_card(
            champion.figures,
            license,
            on_hub,
            name=model.name,
            dataset=dataset,
            n=tags["evaluation.n"],
            base=base,
            small=params.model.source == NANO,
            warm_start=kinds[params.warmstart.kind],
            method=params.train.method,
            train=params.train,
            temperature=params.generation.temperature,
            source=params.prepare.source,
            commit=tags.get("commit", "unknown"),
            weights_hash=tags.get("weights_hash", "unknown"),
        )
        write_text(folder / "README.md", card)
        write_mark(folder, champion)


def named_base(settings: ModelSettings) -> tuple[str, str | None]:
    """What a card says about a base, and the base's name if it's on the Hub."""
    name = settings.source
    if name == NANO:
        return "a small model of this project", None
    if name.startswith(PACKAGE):
        return name, None
    if name.startswith((".", "/")) or Path(name).exists():
        return "a local folder", None
    return name + (f" at {settings.revision}" if settings.revision else ""), name


def without_paths(path: Path) -> bytes:
    """Content of a small file; JSON without the keys that may name a folder of this machine."""
    content = path.read_bytes()
    if path.name not in ("config.json", "tokenizer_config.json"):
        return content
    data = json.loads(content)
    if not set(_PATHS) & set(data):
        return content
    rest = {key: value for key, value in data.items() if key not in _PATHS}
    return (json.dumps(rest, indent=2, ensure_ascii=False) + "\n").encode()


def write_mark(folder: Path, champion: RegisteredChampion) -> None:
    """Write the mark of a repository: the version that it was published with."""
    tags = {key: champion.version.tags.get(key, "unknown") for key in ("commit", "weights_hash")}
    write_json(folder / MARK, {"version": str(champion.version.version), **tags})


def listing(repository: HubRepository, private: bool) -> Iterator[str]:
    """Lines with the repository's files and sizes."""
    visible = "private" if private else "public"
    yield f"{repository.kind} {repository.name} ({visible}), from {repository.folder}:"
    for path in sorted(path for path in repository.folder.rglob("*") if path.is_file()):
        name = path.relative_to(repository.folder).as_posix()
        yield f"  {path.stat().st_size / 1e6:10.3f} MB  {name}"
