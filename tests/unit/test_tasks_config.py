"""Settings: one file, checked before anything starts."""

import re
from pathlib import Path

import pytest
import yaml
from dulwich.repo import Repo

from env import variables
from tasks import config
from tasks.config.derived import derive
from tasks.config.params import Params
from tasks.errors import ConfigError

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("tasks.config.layers.find_model", lambda: None)  # a profile may want it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with params.yaml and nothing else."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_params_yaml_says_defaults_and_nothing_else() -> None:
    assert Params.model_validate(yaml.safe_load((ROOT / "params.yaml").read_text())) == Params()


def test_the_committed_settings_are_those_of_the_default_run() -> None:
    with Repo(".") as git:
        told = yaml.safe_load(git[git.open_index()[b"params.resolved.yaml"].sha].data)
    assert told.pop("derived")
    assert told == config.resolve().model_dump(by_alias=True, mode="json") | {"overrides": []}


def test_what_params_yaml_leaves_out_has_its_default(folder: Path) -> None:
    (folder / "params.yaml").write_text("prepare: {synthetic: {collections: {test: 9}}}")
    found = config.resolve(overrides=["train.steps=3", "prepare.synthetic.levels.easy.papers=5"])
    assert found.prepare.synthetic.collections == {"train": 400, "validation": 40, "test": 9}
    assert found.prepare.synthetic.levels["easy"].papers == 5
    changed = {"prepare", "train"}
    assert found.model_dump(exclude=changed) == Params().model_dump(exclude=changed)


@pytest.mark.parametrize("profile", ["nano", *PROFILES])
def test_each_profile_resolves(profile: str) -> None:
    params = config.resolve(profile)
    assert params.profile == profile
    if params.model.source.startswith("Qwen"):
        # A limit that rounding exceeds would fail hours of training at their end.
        least = {"float16": 0.005, "bfloat16": 0.04}[params.export.dtype]
        assert (params.export.max_logit_error or 0.0) >= least
        # Lower rates learn nothing in so many steps, and slow turns must not end sessions.
        assert params.train.steps * params.train.learning_rate >= 1e-3
        assert params.env.idle_timeout_s >= 3600
        # The prompt, a turn, its observation, and another turn.
        turns = 2 * params.generation.max_turn_tokens
        least = 1000 + params.env.limits.observation_chars // 4 + turns
        assert params.generation.max_frame_tokens >= least


def test_a_profile_starts_from_the_one_that_it_extends(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles/long.yaml").write_text("train: {steps: 90, group_size: 4, seed: 3}")
    (folder / "profiles/longer.yaml").write_text("extends: long\ntrain: {steps: 99}")
    found = config.resolve("longer", ["train.seed=1"])
    assert (found.profile, found.train.steps, found.train.group_size) == ("longer", 99, 4)
    assert found.train.seed == 1
    (folder / "profiles/lost.yaml").write_text("extends: no-such")
    with pytest.raises(ConfigError, match=r"profiles/no-such\.yaml does not exist"):
        config.resolve("lost")


QWEN = "model.source=Qwen/Qwen3-4B"
WRONG: list[tuple[list[str], str]] = [
    (["nothing.here=3"], "nothing: unknown key"),
    (["overrides=[a=1]"], "overrides: unknown key"),
    (["env.limits.max_turn=3"], "Did you mean env.limits.max_turns?"),
    (["train.steps=0", "gate.baseline_episodes=0"], "gate.baseline_episodes"),  # all are told
    (["train.steps=many"], "train.steps"),
    (["train=3"], "train: "),
    (["train.steps"], "section.key=value"),
    (["train.steps=["], "not valid YAML"),
    (["train.steps=2026-13-45"], "not valid YAML: month must be in 1..12"),
    (["train.steps=" + "[" * 1500], "not valid YAML: maximum recursion depth"),
    (["train.steps=[&a [x, x], &b [*a, *a], &c [*b, *b, *b, *b, *b, *b, *b]]"], "train.steps"),
    (["env.limits.cell_cpu_s=.nan"], "cell_cpu_s"),
    (["rewards.weights.efficiency=0.9"], "sum to 1"),
    (["prepare.synthetic.lexicon=16"], "each with another benchmark; raise lexicon 16"),
    (["train.curriculum.levels=[easy, brutal]"], "'brutal' is not in"),
    (["prepare.source=files", "train.curriculum.levels=[easy, brutal]"], "'brutal'"),
    (["train.curriculum.target=harder"], "train.curriculum.target must be one of"),
    (["train.processes=3", "train.problems_per_step=2"], "exceeds problems_per_step"),
    ([QWEN], "warmstart.kind"),
    (["model.quantisation=nf4"], "nano has no 4-bit weights"),
    (["model.template_kwargs={a: null}"], "model.template_kwargs"),
    (["prepare.files.path=null"], "no questions"),
    (["warmstart.sft.base_url=http://me:sesame@host/v1"], "sft.base_url: Value error, an address"),
]


@pytest.mark.parametrize(("overrides", "told"), WRONG, ids=[str(row[0])[:60] for row in WRONG])
def test_a_wrong_setting_is_refused_with_its_path(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        config.resolve(overrides=overrides)
    assert "sesame" not in str(caught.value)
    assert len(str(caught.value)) < 2_000


BROKEN = [
    (None, "params.yaml does not exist"),
    ("a: [", "is not valid YAML"),
    ("- 1", "must contain sections"),
    ("train:\n\tsteps: 3\n", "not tabs"),
    ("train:\n  steps: 3\n  steps: 4\n", "is there twice"),
    ("profile: quick\n", "holds the settings of nano (found 'quick')"),
]


@pytest.mark.parametrize(("content", "told"), BROKEN)
def test_a_missing_or_broken_file_is_told(folder: Path, content: str | None, told: str) -> None:
    path = folder / "params.yaml"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(told)):
        config.resolve()


def test_resolved_settings_come_back_equal_and_are_written_once(folder: Path) -> None:
    params = config.resolve(overrides=["train.steps=3", "validate.min_rows=5"])
    path = config.write_resolved(params)
    written = path.stat().st_mtime_ns
    assert config.load_resolved() == params
    assert yaml.safe_load(path.read_text())["derived"] == derive(params)
    config.write_resolved(params)
    assert path.stat().st_mtime_ns == written
    assert [p.name for p in folder.iterdir() if "resolved" in p.name] == [path.name]
    path.write_text("train: {stpes: 3}\n")
    with pytest.raises(ConfigError, match=r"resolved.yaml: train.stpes: unknown key. .*\?$"):
        config.read_resolved(path)
    with pytest.raises(ConfigError, match="how it was made"):  # its --set values are unknown
        config.load_resolved()


@pytest.fixture
def resolved(folder: Path) -> Path:
    """A folder with settings that were resolved with a profile and `--set`."""
    (folder / "profiles").mkdir()
    (folder / "profiles/mine.yaml").write_text("train: {group_size: 4}")
    config.write_resolved(config.resolve("mine", ["train.steps=3", "train.seed=5"]))
    return folder


def edit(folder: Path, edited: str) -> None:
    """Change a setting in params.yaml or in the profile."""
    if edited == "params.yaml":
        text = yaml.safe_load((folder / edited).read_text())
        text["train"] |= {"steps": 99, "problems_per_step": 7}
    else:
        text = {"train": {"group_size": 4, "steps": 99, "problems_per_step": 7}}
    (folder / edited).write_text(yaml.safe_dump(text))


EDITED = pytest.mark.parametrize("edited", ["params.yaml", "profiles/mine.yaml"])


@EDITED
def test_a_stage_reads_what_was_edited_and_keeps_profile_and_set(resolved, edited):
    assert config.load_resolved().train.problems_per_step != 7
    edit(resolved, edited)
    found = config.load_resolved()
    assert (found.profile, found.train.group_size, found.train.problems_per_step) == ("mine", 4, 7)
    assert (found.train.steps, found.train.seed) == (3, 5)  # --set wins, as before


@EDITED
def test_under_dvc_a_stage_refuses_settings_from_before_an_edit(resolved, edited, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "train")
    assert config.load_resolved().train.steps == 3
    edit(resolved, edited)
    again = "`rlm resolve --profile mine --set train.steps=3 --set train.seed=5`"
    with pytest.raises(ConfigError, match=re.escape(again)):
        config.load_resolved()
    config.write_resolved(config.resolve("mine", ["train.steps=3", "train.seed=5"]))
    assert config.load_resolved().train.problems_per_step == 7


def test_an_edit_does_not_change_the_settings_of_a_running_chain(resolved, monkeypatch):
    monkeypatch.setenv(variables.CHAIN, "1")
    before = config.load_resolved()
    edit(resolved, "params.yaml")
    assert config.load_resolved() == before


FILES = ["prepare.source=files", "prepare.files.path=mine.jsonl"]


WATCHED = [
    (["model.template=mine.jinja"], "template", "mine.jinja"),
    (["model.source=mine", "warmstart.kind=none"], "model", "mine"),
    ([QWEN, "warmstart.kind=none"], "model", None),  # on the Hub
    ([], "model", None),  # not the folder that is called nano
    (FILES, "problems", "mine.jsonl"),
    (FILES, "documents", None),
    ([*FILES, "prepare.files.documents=mine"], "documents", "mine"),
    # Without the file, DVC could only say that something is missing; the stage says what.
    (["prepare.source=files", "prepare.files.path=absent.jsonl"], "problems", None),
]


@pytest.mark.parametrize(("overrides", "name", "wanted"), WATCHED)
def test_dvc_watches_the_users_files_while_they_are_the_source(folder, overrides, name, wanted):
    for own in ("mine", "nano"):
        (folder / own).mkdir()
    for own in ("mine.jinja", "mine.jsonl"):
        (folder / own).touch()
    found = derive(config.resolve(overrides=overrides))[name]
    assert found == wanted if wanted else (ROOT / found).is_file()


def test_only_demonstrations_depend_on_problems_and_rewards() -> None:
    nano = derive(Params())
    assert nano["sft_problems"] == "tasks/warmstart.py"
    assert nano == derive(config.resolve(overrides=["rewards.free_misses=4"]))
    sft = ["warmstart.kind=sft", "model.source=Qwen/Qwen3-4B"]
    shown = derive(config.resolve(overrides=sft))
    assert shown["sft_problems"] == "data/problems"
    other = derive(config.resolve(overrides=[*sft, "rewards.free_misses=4"]))
    assert {name for name in shown if shown[name] != other[name]} == {"sft_settings"}
    lower = ("train.micro_batch_tokens=64", "train.gradient_checkpointing=true")
    for setting in ("generation.cache_tokens=0", *lower):  # as the messages of a full card say
        assert shown == derive(config.resolve(overrides=[*sft, setting]))
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["warmstart"]
    assert "${derived.sft_problems}" in stage["deps"]
    assert "derived.sft_settings" in stage["params"][0]["params.resolved.yaml"]
