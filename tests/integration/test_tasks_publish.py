"""`rlm publish`: the real client of the Hub against a server that speaks its HTTP, read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.problem_files import write_problems
from helpers.sandbox_attacks import ROOT
from helpers.space_hub import READ_TOKEN, TOKEN, Repo, SpaceHub, serve_spaces

from env.problems.store import ProblemStore
from tasks import config, paths, prepare
from tasks.config.params import Params
from tasks.errors import ConfigError, PipelineError, StageError
from tasks.publish import FOLDER, publish
from tasks.registry import champions, versions
from tasks.tracking import lineage, runs

pytestmark = pytest.mark.xdist_group("registry")  # so that one process imports MLflow

SEED = 2**90 + 71_934_205_553_112_009
FEW = "prepare.synthetic.collections={train: 2, validation: 1, test: 2}"
MODEL, TASKS = ("model", "ada/rlm-model"), ("dataset", "ada/rlm-tasks")
FIGURES = {
    f"evaluation.{name}.{key}": value
    for name in ("reward", "f1_greedy", "f1_sampled", "primary_objective")
    for key, value in {"before": "0.250000", "after": "0.750000", "ci95": "[0.4, 0.6]"}.items()
} | {"evaluation.n": "240"}


@cache
def settings(*overrides: str) -> Params:
    fixed = ["publish.license=apache-2.0", f"prepare.synthetic.seed={SEED}", FEW]
    with chdir(ROOT):
        return config.resolve(overrides=[*fixed, *overrides])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """A folder after a run: problems, and a champion that was registered with its figures."""
    path = tmp_path_factory.mktemp("project")
    shutil.copy(empty_store, path)
    params = settings()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}/mlflow.db")
        (path / "params.yaml").symlink_to(ROOT / "params.yaml")
        store = ProblemStore.generate(params.prepare.synthetic)
        for split in prepare.SPLITS:
            problems = map(store.get, store.ids(split))
            write_problems(paths.PROBLEMS / f"{split}.parquet", problems)
        paths.PREPARED.write_text("{}")
        crowned("rlm", FIGURES)
        yield path


def crowned(name: str, figures: dict[str, str]) -> None:
    """A version with a model, made champion."""
    merged = Path(name) / versions.ARTIFACT
    merged.mkdir(parents=True)
    (merged / "model.safetensors").write_bytes(b"weights" * 100_000)
    config_ = {"model_type": "qwen3", "_name_or_path": str(Path.cwd() / "models/base")}
    (merged / "config.json").write_text(json.dumps(config_))
    (merged / "tokenizer.json").write_text("{}")
    for other in ("notes.py", "notes.txt", "secrets.json"):
        (merged / other).write_text("raise SystemExit")
    config.write_resolved(settings())
    shutil.copy(config.RESOLVED, merged.parent)
    client = runs.client(runs.tracking_uri())
    client.create_registered_model(name)
    tags = {
        "weights_hash": versions.weights_hash(merged),
        "data_report": lineage.files_hash([paths.PREPARED], paths.PREPARED.parent),
        **figures,
    }
    client.create_model_version(name, source=name, tags=tags)
    champions.crown(versions.get_version(name, "1"), instead_of=None)


@pytest.fixture
def hub(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpaceHub]:
    """An empty Hub, and the token of somebody who may write."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("tasks.data.hub._WAIT_S", 0)
    # Its store of chunks has another protocol, which the server does not speak.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with serve_spaces(tmp_path / "hub", host="http://127.0.0.1:9") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def published(*overrides: str) -> list[str]:
    return list(publish(settings(*overrides), push=True))


def uploads(hub: SpaceHub) -> list[str]:
    return [one for one in hub.asked if one.startswith("PUT") or "/commit/" in one]


def read_back(hub: SpaceHub, repo: tuple[str, str], name: str, folder: Path) -> Path:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.url, token=TOKEN)
    return Path(api.hf_hub_download(repo[1], name, repo_type=repo[0], local_dir=folder))


def test_without_push_the_files_are_written_and_nobody_is_asked(
    hub: SpaceHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    lines = list(publish(settings(), push=False))
    assert hub.asked == []
    assert "model rlm-model (private), from reports/publish/model:" in lines
    assert "       0.700 MB  model.safetensors" in lines
    assert lines[-1] == "Nothing was uploaded. Read reports/publish, then add --push."
    assert {path.name for path in (FOLDER / "model").iterdir()} == {
        *("README.md", "rlm.json"),
        *("config.json", "tokenizer.json", "model.safetensors"),
    }


def test_the_model_is_read_back_with_its_card_and_is_published_once(
    hub: SpaceHub,
    project: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from huggingface_hub import HfApi, ModelCard

    caplog.set_level("DEBUG")
    lines = published()
    assert [line for line in lines if line.startswith("Uploaded")] == [
        f"Uploaded: {hub.url}/datasets/ada/rlm-tasks at {hub.repos[TASKS].sha[:8]}",
        f"Uploaded: {hub.url}/ada/rlm-model at {hub.repos[MODEL].sha[:8]}",
    ]
    names = HfApi(endpoint=hub.url, token=TOKEN).list_repo_files("ada/rlm-model")
    assert {"README.md", "model.safetensors"} <= set(names)
    weights = read_back(hub, MODEL, "model.safetensors", tmp_path)
    assert weights.read_bytes() == b"weights" * 100_000
    assert hub.repos[MODEL].private
    card = ModelCard.load(read_back(hub, MODEL, "README.md", tmp_path))
    assert (card.data.license, card.data.pipeline_tag) == ("apache-2.0", "text-generation")
    assert card.data.datasets == ["ada/rlm-tasks"]
    assert {"openenv", "rl-environment"} <= set(card.data.tags or [])
    assert card.data.get("base_model") is None  # nano is not on the Hub
    assert "| F1, greedy | 0.250 | 0.750 | +0.500 (+0.400 to +0.600) |\n|" in card.text
    assert "cannot read ordinary documents" in card.text
    assert "vllm serve" not in card.text
    files = b"".join(b"".join(repo.files.values()) for repo in hub.repos.values())
    for secret in (TOKEN, str(SEED), str(project)):
        assert secret.encode() not in files
    written = capfd.readouterr()
    assert TOKEN not in "\n".join([*lines, written.out, written.err, caplog.text])
    before = uploads(hub)
    published()
    assert uploads(hub) == before


def test_answers_of_held_splits_are_not_in_the_data_set(hub: SpaceHub, tmp_path: Path) -> None:
    from datasets import load_dataset
    from huggingface_hub import DatasetCard

    published()
    card = DatasetCard.load(read_back(hub, TASKS, "README.md", tmp_path))
    assert {"openenv", "rl-environment"} <= set(card.data.tags or [])
    for split in prepare.SPLITS:
        read_back(hub, TASKS, f"data/{split}.parquet", tmp_path)
    loaded = load_dataset(str(tmp_path), cache_dir=str(tmp_path / "cache"))
    store = ProblemStore.load(paths.PROBLEMS)
    assert {split: len(rows) for split, rows in loaded.items()} == {
        split: len(store.ids(split)) for split in prepare.SPLITS
    }
    for row in loaded["test"]:
        problem = store.get(row["problem_id"])
        assert [row[name] for name in ("tier", "evidence", "candidates")] == [None] * 3
        assert [paper["text"] for paper in json.loads(row["papers"])] == [*problem.texts.values()]
    assert all(row["evidence"] for row in loaded["train"])
    assert "can be guessed" not in card.text


def test_the_base_of_a_model_of_the_hub_is_in_its_metadata() -> None:
    from huggingface_hub import ModelCard

    from tasks.reporting import cards

    figures = cards.read_figures(FIGURES)
    facts: dict[str, Any] = dict.fromkeys(
        ("n", "base", "warm_start", "method", "source", "commit", "weights_hash"), "-"
    )
    facts |= {"train": Params().train, "temperature": 1.0, "small": False}
    text = cards.model_card(figures, "mit", "org/base", name="a/b", dataset="a/c", **facts)
    assert ModelCard(text).data.base_model == "org/base"
    assert "ordinary documents" not in text
    assert "\n\nTo ask it about a folder of documents" in text


@pytest.mark.parametrize(
    ("cut", "puts"),
    [
        ("PUT /lfs", 2),
        ("POST /api/models/ada/rlm-model/commit", 1),  # the weights arrived before
        ("POST /api/models/ada/rlm-model/preupload", 1),
    ],
)
def test_an_upload_that_was_cut_publishes_no_half_and_is_finished_by_the_next_run(
    hub: SpaceHub, cut: str, puts: int
) -> None:
    hub.faults = {cut: ["always", 400]}
    lines: list[str] = []
    with pytest.raises(StageError, match=r"cannot push .* to the model ada/rlm-model.*run again"):
        lines.extend(publish(settings(), push=True))
    assert [line.split("/")[-1].split()[0] for line in lines if "Uploaded" in line] == ["rlm-tasks"]
    assert set(hub.repos[MODEL].files) == {".gitattributes"}
    sha = hub.repos[TASKS].sha
    hub.faults = {}
    assert published()[-1].startswith(f"Uploaded: {hub.url}/ada/rlm-model")
    assert "model.safetensors" in hub.repos[MODEL].files
    assert hub.repos[TASKS].sha == sha
    assert len([one for one in hub.asked if one.startswith("PUT")]) == puts


def test_documents_of_others_need_a_licence_of_their_own(
    hub: SpaceHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings().model_copy(
        update={"prepare": settings().prepare.model_copy(update={"source": "files"})}
    )
    monkeypatch.setattr(versions, "settings", lambda version: own)
    with pytest.raises(ConfigError, match=r"documents of others. Set publish.dataset_license"):
        published()
    list(publish(settings("publish.dataset_license=cc-by-4.0"), push=False))
    assert "license: cc-by-4.0" in (FOLDER / "tasks/README.md").read_text()
    held = pd.read_parquet(FOLDER / "tasks/data/test.parquet")
    assert held["difficulty"].isna().all()  # it follows from the number of gold papers


REFUSALS: list[tuple[list[str], dict[str, str], type[PipelineError], str]] = [
    (["publish.license=null"], {}, ConfigError, "--license"),
    (["publish.model=a--b"], {}, ConfigError, "publish.model"),
    (["publish.dataset=rlm-problems"], {}, ConfigError, "answers"),
    (["register.model_name=other"], {}, StageError, "no champion"),
    (["publish.model=bob/m"], {}, ConfigError, "not yours"),
    (["publish.private=false"], {}, ConfigError, "publish.private"),
    (["publish.model=thesis"], {}, ConfigError, "thesis.pdf"),
    ([], {"HF_TOKEN": ""}, ConfigError, "HF_TOKEN"),
    ([], {"HF_TOKEN": "hf_unknown"}, ConfigError, "401"),
    ([], {"HF_TOKEN": READ_TOKEN}, ConfigError, "403"),
]


@pytest.mark.parametrize(("overrides", "environ", "error", "word"), REFUSALS)
def test_a_refusal_comes_before_anything_is_uploaded(
    hub: SpaceHub,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    environ: dict[str, str],
    error: type[PipelineError],
    word: str,
) -> None:
    commits = ["0" * 40]
    hub.repos["model", "ada/thesis"] = Repo(True, files={"thesis.pdf": b""}, commits=commits)
    if "publish.private=false" in overrides:
        hub.repos[MODEL] = Repo(private=True, commits=commits)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=word):
        published(*overrides)
    assert uploads(hub) == []


def test_problems_of_another_run_are_refused(hub: SpaceHub) -> None:
    paths.PREPARED.write_text('{"rows": 1}')
    try:
        with pytest.raises(StageError, match="not the problems"):
            published()
    finally:
        paths.PREPARED.write_text("{}")
    assert uploads(hub) == []
