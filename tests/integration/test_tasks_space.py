"""The target `space`: the real client of the Hub against a server that speaks its HTTP."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from helpers.problem_files import write_problems
from helpers.sandbox_attacks import ROOT
from helpers.space_hub import READ_TOKEN, TOKEN, Repo, SpaceHub, serve_spaces

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.exploits.fields_expert import careless, fields_expert
from env import variables
from env.problems.store import ProblemStore
from env.server.service import read_settings
from tasks import deploy, paths
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment import build_context, checks, hub_client, space
from tasks.deployment.environment import _given, environment
from tasks.errors import ConfigError, PipelineError, StageError
from tasks.tracking import runs

SEED = 2**90 + 71_934_205_553_112_007
FEW = "prepare.synthetic.collections={train: 2, validation: 1, test: 2}"
QUICK = ["deploy.target=space", "threads=1", FEW]
DATASET = "deploy.space.problems=dataset"


@cache
def settings(*overrides: str) -> Params:
    with chdir(ROOT):
        return resolve(overrides=[*QUICK, f"prepare.synthetic.seed={SEED}", *overrides])


HURRY = mock.patch.multiple(hub_client, ATTEMPTS=2, TIMEOUT_S=0.5)
"""Less patience with the Hub."""


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder of its own, the token of somebody who may write, no waiting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(space, "POLL_S", 0.02)
    monkeypatch.setattr(space, "WAIT_S", 60)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("URL", "TOKEN", "OWNER_KEY", "SEED", "DATASET_TOKEN"):
        monkeypatch.delenv(getattr(variables, name), raising=False)
    monkeypatch.setattr("tasks.deployment.hub_client._WAIT_S", 0)
    # Its store of chunks has another protocol, which the server does not speak.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)


@pytest.fixture
def the_hub(tmp_path_factory, server_url, monkeypatch) -> Iterator[SpaceHub]:
    """A Hub whose Spaces are all the server of the other tests."""
    with serve_spaces(tmp_path_factory.mktemp("hub"), host=server_url) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def repo_of(the_hub: SpaceHub, name: str = "ada/rlm", kind: str = "space") -> Repo:
    return the_hub.repos[kind, name]


# --- the tree


def test_the_tree_holds_the_environment_with_its_settings_and_nothing_else() -> None:
    params = settings("env.limits.max_turns=5", "rewards.min_span_chars=13", "env.splits=[test]")
    tree = build_context.stage(params, "secret", ["note"], splits=params.env.splits)
    assert {path.name for path in tree.iterdir()} == {
        *("env", "rewards", "Dockerfile", ".dockerignore", "README.md", "openenv.yaml"),
        *("params.yaml", "constraints.txt", "pyproject.toml"),
    }
    assert "openenv==" in (tree / "constraints.txt").read_text()
    read = read_settings({"RLM_SETTINGS": str(tree / "params.yaml")})
    assert (read.env, read.rewards) == (params.env, params.rewards)
    assert read.prepare.synthetic == params.prepare.synthetic.model_copy(update={"seed": 0})


def test_seed_and_owners_key_are_secrets_of_the_space_and_nothing_else(the_hub: SpaceHub) -> None:
    access = space.deployed(settings(), None)
    secrets = {variables.SEED: str(SEED), variables.OWNER_KEY: access.owner_key}
    assert repo_of(the_hub).secrets == secrets
    assert len(access.owner_key) == 64
    pushed = b"".join(repo_of(the_hub).files.values())
    assert str(SEED).encode() not in pushed
    assert access.owner_key.encode() not in pushed + everything_written(Path())


def test_a_key_of_the_environment_replaces_the_spaces_key(the_hub, monkeypatch):
    space.deployed(settings(), None)
    before = len(repo_of(the_hub).commits)
    monkeypatch.setenv(variables.OWNER_KEY, "o" * 32)
    assert space.deployed(settings(), None).owner_key == "o" * 32
    assert repo_of(the_hub).secrets[variables.OWNER_KEY] == "o" * 32
    assert len(repo_of(the_hub).commits) == before + 1  # it starts with the new key
    monkeypatch.setenv(variables.OWNER_KEY, "o" * 31)
    with pytest.raises(ConfigError, match=r"RLM_ENV_OWNER_KEY has fewer than 32 characters"):
        space.deployed(settings(), None)


def test_the_code_in_the_readme_of_a_space_runs_where_its_tree_is_installed(server_url, tmp_path):
    tree = build_context.stage(settings(), "secret", []).resolve()
    (code,) = re.findall(r"^```python\n(.*?)^```$", (tree / "README.md").read_text(), re.S | re.M)
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "fresh/bin/python"
    run = partial(subprocess.check_output, env=os.environ | {"PYTHONPATH": ""}, text=True)
    run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "fresh"])
    pins = ["--constraint", tree / "constraints.txt"]
    run([uv, "pip", "install", "--quiet", "--python", python, *pins, tree])
    told = run([python, "-c", code.replace("https://OWNER-NAME.hf.space", server_url)])
    assert re.search(r"context: \d+ papers", told)
    assert "p1" in told


# --- pushing


def test_an_unchanged_tree_makes_no_new_commit(the_hub: SpaceHub) -> None:
    params = settings()
    access = space.deployed(params, None)
    assert access.token == TOKEN
    commits = list(repo_of(the_hub).commits)
    the_hub.asked.clear()
    assert space.deployed(params, None) == access
    assert repo_of(the_hub).commits == commits
    assert not [request for request in the_hub.asked if "secrets" in request or "commit" in request]
    assert json.loads(space.REPORT.read_text())["commit"] == commits[-1]
    # A file that left the tree leaves the Space.
    repo_of(the_hub).files["env/old.py"] = b"x = 1\n"
    space.deployed(params, None)
    assert "env/old.py" not in repo_of(the_hub).files
    assert ".gitattributes" in repo_of(the_hub).files


CHANGES = ["prepare.synthetic.seed=5000000", 'deploy.space.variables={A: "b\\nenv: {}"}']


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_one_commit_after_its_secrets(the_hub: SpaceHub, change: str) -> None:
    space.deployed(settings(), None)
    before = len(repo_of(the_hub).commits)
    the_hub.asked.clear()
    space.deployed(settings(change), None)
    assert len(repo_of(the_hub).commits) == before + 1
    posts = [request.rsplit("/")[-1] for request in the_hub.asked if "POST" in request]
    assert posts.index("secrets") < posts.index("main")
    assert posts[-1] == "main"


@pytest.mark.parametrize(
    ("where", "overrides", "name", "told"),
    [
        (("space", "ada/rlm"), [], "app.py", r"space\.name"),
        (("dataset", "ada/rlm-problems"), [DATASET], "train.parquet", r"space\.dataset"),
        (("dataset", "ada/rlm-problems"), [DATASET], "README.md", r"space\.dataset"),
    ],
)
def test_a_repository_of_others_is_left_alone(the_hub, monkeypatch, where, overrides, name, told):
    monkeypatch.setenv(variables.DATASET_TOKEN, READ_TOKEN)
    files = {".gitattributes": b"", name: b"one of a kind"}
    other = the_hub.repos[where] = Repo(private=True, files=dict(files))
    other.commit()
    params = settings(*overrides)
    problems = local_problems(params)
    (problems / "train.parquet").write_bytes((problems / "test.parquet").read_bytes())
    with pytest.raises(ConfigError, match=rf"contains other files \({name}\).*{told}"):
        space.deployed(params, problems)
    assert (other.files, other.secrets) == (files, {})
    assert list(the_hub.repos) == [where]


def test_a_data_set_whose_upload_was_cut_is_finished_by_the_next_run(the_hub, monkeypatch):
    monkeypatch.setenv(variables.DATASET_TOKEN, READ_TOKEN)
    params = settings(DATASET)
    problems = local_problems(params)
    the_hub.faults["PUT /lfs"] = ["always", 400]
    with pytest.raises(StageError, match=r"cannot push .* to the dataset .*nothing is half done"):
        space.deployed(params, problems)
    put = repo_of(the_hub, "ada/rlm-problems", "dataset")
    assert set(put.files) == {".gitattributes"}
    the_hub.faults.clear()
    space.deployed(params, problems)
    space.deployed(params, problems)
    assert len(put.commits) == 2  # its own first, and ours
    assert put.files["test.parquet"] == (problems / "test.parquet").read_bytes()
    assert put.large == {"test.parquet"}


# --- refusals and faults of the Hub


GUESSED = ["deploy.space.private=false", "prepare.synthetic.seed=3"]
REFUSALS: list[tuple[list[str], dict[str, str], dict[str, list[Any]], type[PipelineError], str]] = [
    (GUESSED, {}, {}, ConfigError, "guess"),
    ([*GUESSED, f"prepare.synthetic.seed={2**70}"], {}, {}, ConfigError, "guess"),
    (["prepare.source=files"], {}, {}, ConfigError, "deploy.space.problems"),
    ([DATASET], {}, {}, ConfigError, "data/problems"),
    # A data set does not hide the gold of a seed that can be guessed.
    ([DATASET, *GUESSED], {variables.DATASET_TOKEN: READ_TOKEN}, {}, ConfigError, "guess"),
    (["deploy.space.secrets=[ABSENT]"], {}, {}, ConfigError, "ABSENT"),
    (["deploy.space.name=bob/rlm"], {}, {}, ConfigError, "403"),
    ([], {"HF_ENDPOINT": "http://127.0.0.1:9"}, {}, StageError, "Connection refused"),
    ([], {}, {"whoami": ["always", 401]}, ConfigError, "hf auth login"),
    ([], {}, {"whoami": ["always", 503]}, StageError, "503"),
    ([], {}, {"repos/create": [402]}, ConfigError, "402"),
]


@pytest.mark.parametrize(("overrides", "environ", "faults", "error", "word"), REFUSALS)
def test_a_refusal_pushes_nothing(the_hub, monkeypatch, overrides, environ, faults, error, word):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    the_hub.faults |= {where: list(plan) for where, plan in faults.items()}
    params = settings(*overrides)
    data = local_problems(params) if variables.DATASET_TOKEN in environ else None
    with HURRY, pytest.raises(error, match=word) as caught:
        space.deployed(params, data)
    assert TOKEN not in str(caught.value)
    assert the_hub.repos == {}


def test_a_space_of_other_visibility_is_not_changed_silently(the_hub: SpaceHub) -> None:
    space.deployed(settings("deploy.space.private=false"), None)
    with pytest.raises(ConfigError, match="private"):
        space.deployed(settings(), None)


@pytest.mark.parametrize(
    ("where", "faults", "error", "word"),
    [
        ("/secrets", [403], ConfigError, "403"),
        ("commit/main", [412], StageError, "412"),
        ("commit/main", ["always", 500], StageError, "nothing is half done"),
        ("commit/main", [2.0, 2.0], StageError, "timed out"),
        ("/runtime", ["always", 502], StageError, "cannot ask how"),
    ],
)
def test_after_a_fault_of_the_hub_the_next_run_is_clean(the_hub, where, faults, error, word):
    the_hub.faults[where] = list(faults)
    with HURRY, pytest.raises(error, match=word):
        space.deployed(settings(), None)
    the_hub.faults.clear()
    time.sleep(0.1)
    space.deployed(settings(), None)
    assert len(repo_of(the_hub).commits) == 2  # its own first, and ours
    assert repo_of(the_hub).files.keys() >= {"Dockerfile", "env/server/app.py"}


@pytest.mark.parametrize("faults", [[503, 500], ["after", 503]])
def test_a_commit_is_tried_again_and_made_once(the_hub: SpaceHub, faults: list[Any]) -> None:
    the_hub.faults["commit/main"] = faults
    space.deployed(settings(), None)
    assert len(repo_of(the_hub).commits) == 2


# --- waiting


def waiting(the_hub: SpaceHub, script: list[dict[str, Any]], wait_s: float = 0.3) -> Any:
    """Deploy while the Hub tells these runtimes; `SHA` stands for the commit that is pushed."""
    with mock.patch.object(space, "WAIT_S", wait_s):
        space.deployed(settings(), None)
        sha = repo_of(the_hub).sha
        the_hub.script = [
            {key: sha if value == "SHA" else value for key, value in one.items()} for one in script
        ]
        return space.deployed(settings(), None)


OLD = "0" * 40


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"stage": "BUILDING", "sha": "SHA"}, "BUILDING after 0.3 s"),
        ({"stage": "RUNNING", "sha": OLD}, "older commit"),
        ({"stage": "BUILD_ERROR", "sha": "SHA"}, "ended in BUILD_ERROR"),
    ],
)
def test_a_space_that_does_not_run_this_commit_is_said(the_hub, told, word):
    with pytest.raises(StageError, match=word):
        waiting(the_hub, [told])


@pytest.mark.parametrize(
    "first", [{"stage": "BUILD_ERROR", "sha": OLD}, {"stage": "RUNTIME_ERROR"}]
)
def test_what_the_hub_says_before_the_new_commit_is_no_end(the_hub, first):
    waiting(the_hub, [first, first, {"stage": "RUNNING", "sha": "SHA"}], wait_s=20)


def test_a_crash_shows_the_end_of_its_log_without_secrets(the_hub: SpaceHub) -> None:
    space.deployed(settings(), None)
    lines = [f"line {n}" for n in range(40)]
    repo_of(the_hub).logs["run"] = "\n".join([*lines, f"boom seed={SEED} token={TOKEN}"])
    with pytest.raises(StageError) as caught:
        waiting(the_hub, [{"stage": "RUNTIME_ERROR", "sha": "SHA"}])
    told = str(caught.value)
    assert told.endswith("line 39\nboom seed=*** token=***")
    assert "line 20" not in told


def test_a_space_that_ended_gets_its_secrets_again_and_is_built_anew(the_hub, monkeypatch):
    params = settings("deploy.space.secrets=[MY_KEY]")
    monkeypatch.setenv("MY_KEY", "k-that-expired")
    space.deployed(params, None)
    repo = repo_of(the_hub)
    commits = list(repo.commits)
    repo.runtime = {"stage": "RUNTIME_ERROR", "sha": repo.sha}
    monkeypatch.setenv("MY_KEY", "k-that-is-good")
    space.deployed(params, None)
    assert repo.secrets["MY_KEY"] == "k-that-is-good"
    assert (repo.commits, repo.restarts) == (commits, 1)
    space.deployed(params, None)
    assert repo.restarts == 1


# --- Spaces that run


def local_problems(params: Params) -> Path:
    """This machine's data, as `prepare` would write it."""
    store = ProblemStore.generate(params.prepare.synthetic)
    write_problems(paths.TEST, map(store.get, store.ids("test")))
    return paths.PROBLEMS


def everything_written(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.timeout(240)
def test_a_private_space_is_pushed_started_and_played(
    tmp_path, tmp_path_factory, monkeypatch, capfd, caplog, mlflow_store
):
    caplog.set_level("DEBUG")
    params = settings()
    local_problems(params)
    with serve_spaces(tmp_path_factory.mktemp("hub")) as the_hub:
        monkeypatch.setenv("HF_ENDPOINT", the_hub.url)
        with runs.stage_run("deploy", params) as run:
            report = json.loads(deploy.run(params, run).read_text())
        assert (report["space"], report["commit"]) == ("ada/rlm", repo_of(the_hub).sha)
        assert report["problem_source"] == "synthetic, secret seed"
        assert "seccomp" in report["sandbox"]
        with environment(params) as url:
            ids = ProblemStore.generate(params.prepare.synthetic).ids("test", "medium")
            specs = [EpisodeSpec(one, seed=0) for one in ids[:3]]
            trees = play(fields_expert(ask="rlm_query"), url, specs, sessions=2)
            assert all(tree.void is None and len(tree.frames) > 1 for tree in trees)
            assert all((tree.reward or 0) > 0.9 for tree in trees)
            key = os.environ[variables.OWNER_KEY]
        assert variables.TOKEN not in os.environ
        assert variables.OWNER_KEY not in os.environ
        with variables.addressed(url, TOKEN):
            plays_as_a_stranger(url, params, trees[0], key)
            with pytest.raises(ConfigError, match=r"opens only train to strangers.*Set RLM_ENV_OW"):
                _given(params, url)
        local_problems(settings("prepare.synthetic.seed=1"))
        with (
            variables.addressed(url, TOKEN, key),
            pytest.raises(ConfigError, match="does not serve the problems"),
        ):
            checks.check_problems(url, paths.PROBLEMS)
    told = capfd.readouterr()
    assert TOKEN.encode() not in everything_written(tmp_path)
    for secret in (TOKEN, key[:16], key[-16:]):
        assert secret not in told.out + told.err + caplog.text


def plays_as_a_stranger(url: str, params: Params, own: Trajectory, key: str) -> None:
    """Without the owner's key: test problems are unknown, figures have two digits."""

    def reset(**asked: str) -> dict[str, Any]:
        """Observation of the HTTP route."""
        answer = httpx.post(f"{url}/reset", json=asked, headers=variables.headers(url), timeout=60)
        return dict(answer.json()["observation"])

    assert "this server has no problem" in reset(problem_id=own.problem_id)["refused"]
    assert reset(problem_id=own.problem_id, owner_key=key)["frames"]
    store = ProblemStore.generate(params.prepare.synthetic)
    about = checks.metadata(url)
    assert about["splits"] == ["train"]
    assert about["problems"] == len(store.ids("train"))
    (tree,) = play(careless(), url, [EpisodeSpec(store.ids("train", "hard")[0])], sessions=1)
    figures = [tree.reward, *tree.components.values(), tree.metrics.precision, tree.metrics.f1]
    assert figures == [round(value, 2) for value in figures]
    assert tree.reward > 0
    assert (own.reward or 0) != round(own.reward or 0, 2)


@pytest.mark.timeout(240)
def test_a_public_space_plays_the_problems_of_a_private_data_set(tmp_path_factory, monkeypatch):
    params = settings(DATASET, "deploy.space.private=false", "env.splits=[test]")
    local_problems(params)
    monkeypatch.setenv(variables.DATASET_TOKEN, READ_TOKEN)
    with serve_spaces(tmp_path_factory.mktemp("hub")) as the_hub:
        monkeypatch.setenv("HF_ENDPOINT", the_hub.url)
        with environment(params) as url:
            checks.check_problems(url, paths.PROBLEMS)
            about = checks.metadata(url)
        problems, pushed = repo_of(the_hub, "ada/rlm-problems", "dataset"), repo_of(the_hub)
    assert about["problem_source"] == f"ada/rlm-problems at {problems.sha}"
    assert about["splits"] == ["test"]  # those of the settings, for strangers
    assert problems.private
    assert not pushed.private
    assert set(pushed.secrets) == {variables.DATASET_TOKEN, variables.OWNER_KEY}
    assert pushed.secrets[variables.DATASET_TOKEN] == READ_TOKEN
    assert not [name for name in pushed.files if name.endswith(".parquet")]


def test_a_token_goes_to_its_own_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.URL, "https://ada-rlm.hf.space")
    monkeypatch.setenv(variables.TOKEN, TOKEN)
    sent = {"Authorization": f"Bearer {TOKEN}"}
    assert variables.headers("https://ada-rlm.hf.space/health") == sent
    assert variables.headers("wss://ada-rlm.hf.space/ws") == sent
    for other in (
        *("http://ada-rlm.hf.space", "https://ada-rlm.hf.space.evil.example"),
        *("https://ada-rlm.hf.space@evil.example", "https://evil.example/ada-rlm.hf.space"),
        *("https://ada-rlm.hf.space:8443", "http://127.0.0.1:8000"),
    ):
        assert variables.headers(other) == {}
