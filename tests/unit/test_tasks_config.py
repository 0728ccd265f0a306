"""Settings: one file, checked before anything starts, and every key of it used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from tasks import config
from tasks.config.derived import DEMONSTRATED, derive
from tasks.config.params import Params
from tasks.config.renamed import REMOVED, RENAMED
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


def test_params_yaml_says_the_defaults_and_nothing_else() -> None:
    written = yaml.safe_load((ROOT / "params.yaml").read_text())
    assert written == Params().model_dump(by_alias=True, mode="json")


def test_each_section_of_params_yaml_has_a_comment() -> None:
    lines = (ROOT / "params.yaml").read_text().splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"[a-z]+:", line) and "#" not in line and not before.startswith("#")
    ]
    assert bare == []


@pytest.mark.parametrize("profile", ["nano", *PROFILES])
def test_each_profile_resolves(profile: str) -> None:
    assert config.resolve(profile).profile == profile


def test_a_profile_starts_from_the_one_that_it_extends(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles/long.yaml").write_text("train: {steps: 90, group_size: 4}")
    (folder / "profiles/longer.yaml").write_text("extends: long\ntrain: {steps: 99}")
    found = config.resolve("longer", ["train.seed=1"])
    assert (found.profile, found.train.steps, found.train.group_size) == ("longer", 99, 4)
    assert found.train.seed == 1
    (folder / "profiles/lost.yaml").write_text("extends: no-such")
    with pytest.raises(ConfigError, match=r"profiles/no-such\.yaml does not exist"):
        config.resolve("lost")


@pytest.mark.parametrize(
    ("profile", "frame_tokens", "trees", "dtype"),
    [
        ("t4", 2048, 16, "float16"),
        ("a100", 4096, 64, "bfloat16"),
        ("h200", 8192, 128, "bfloat16"),
    ],
)
def test_profiles_of_cards_train_one_model_on_one_card(
    profile: str, frame_tokens: int, trees: int, dtype: str
) -> None:
    found = config.resolve(profile)
    assert (found.prepare.synthetic.world, found.env.prompt_style) == ("papers", "full")
    stages = (found.gate, found.train, found.evaluate)
    assert {stage.generation.max_frame_tokens for stage in stages} == {frame_tokens}
    assert found.train.micro_batch_tokens >= frame_tokens
    assert found.train.problems_per_step * found.train.group_size == trees
    assert (found.train.processes, found.export.dtype) == (1, dtype)
    assert found.model.backend == ("unsloth" if profile == "t4" else "transformers")


@pytest.mark.parametrize(
    ("profile", "card_gb", "weights_gb"),
    [("t4", 16.1, 3.3), ("a100", 42.9, 3.3), ("h200", 150.7, 8.6)],
)
def test_a_card_has_room_for_the_frames_that_the_own_loop_decodes_together(
    profile: str, card_gb: float, weights_gb: float
) -> None:
    found = config.resolve(profile)
    token_gb = 36 * 2 * 8 * 128 * 2 / 1e9  # keys and values of Qwen3-4B in 16 bit
    # The merged model that `evaluate` plays has 16 bit.
    for stage, weights in (
        (found.gate, weights_gb),
        (found.train, weights_gb),
        (found.evaluate, 8.1),
    ):
        sampling = stage.generation
        # A buffer that grows is there twice. Kept caches are, beside those that waiting turns read.
        batch = 2 * sampling.batch_frames * sampling.max_frame_tokens
        tokens = batch + 2 * sampling.cache_tokens
        assert weights + tokens * token_gb < 0.95 * card_gb


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.stepz=3", "train.stepz: unknown key"),
        ("nothing.here=3", "nothing: unknown key"),
        ("train.steps=0", "train.steps: Input should be greater than or equal to 1 (found 0)"),
        ("train.steps=many", "train.steps: Input should be a valid integer"),
        ("train=3", "train: "),
        ("rewards.weights.efficiency=0.9", "the four weights must sum to 1"),
        ("prepare.synthetic.levels.easy.papers=1", "prepare.synthetic.levels.easy.papers: "),
        ("prepare.synthetic.levels.easy.hint=true", "hint: removed (no question has a hint)"),
        ("warmstart.nano.mixture.alone=1", "warmstart.nano.mixture: removed (warmstart.nano.read"),
        ("train.curriculum.levels=[easy, double]", "train.curriculum.levels: 'double' is not in"),
        ("prepare.synthetic.levels.easy.splits=[]", "prepare.synthetic.levels.easy.splits: "),
        ("train.curriculum.target=harder", "train.curriculum.target must be one of"),
        ("train.steps", "Write section.key=value."),
        ("train.steps=[", "the value is not valid YAML"),
        ("version.remote=s3", "version: renamed to push"),
        ("env.sandbox.backend=monty", "env.sandbox.backend: removed (seccomp is the only sandbox)"),
        ("measure={concurrency: 1}", "measure: renamed to evaluate_model"),
        (
            "prepare.synthetic.groups={train: 1}",
            "prepare.synthetic.groups: renamed to prepare.synthetic.collections",
        ),
        ("train.parity.every=5", "train.parity: renamed to train.logprob_check"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(overrides=[override])
    assert told in str(caught.value)


def test_fewer_children_than_gold_papers_are_refused_where_papers_are_given_to_children() -> None:
    with pytest.raises(ConfigError, match=r"max_children 2 is below the 7 gold papers"):
        config.resolve("papers", ["env.limits.max_children=2"])


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(overrides=["train.steps=0", "gate.episodes=0"])
    assert "train.steps" in str(caught.value)
    assert "gate.episodes" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "params.yaml does not exist"),
        ("a: [", "is not valid YAML"),
        ("- 1", "must contain sections"),
        ("\0", "is not valid YAML"),
        (
            "train:\n\tsteps: 3\n",
            "line 2, column 1: found character that cannot start any token. "
            "Indent with spaces, not tabs.",
        ),
        ("train:\n  steps: 3\n  steps: 4\n", "line 3, column 3: the key 'steps' is there twice"),
        ("profile: quick\n", "holds the settings of nano (found 'quick')"),
    ],
)
def test_a_missing_or_broken_file_is_told(folder: Path, content: str | None, told: str) -> None:
    path = folder / "params.yaml"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(told)):
        config.resolve()


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"profiles/huge\.yaml does not exist\. .*\['nano'"):
        config.resolve("huge")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("train.stepps=3", "train.steps"),
        ("trian={}", "train"),
        ("env.limits.max_turn=3", "env.limits.max_turns"),
    ],
)
def test_a_misspelt_key_comes_with_its_nearest_setting(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key\. Did you mean {re.escape(right)}\?"):
        config.resolve(overrides=[wrong])


def test_an_override_replaces_one_value_only() -> None:
    changed = config.resolve(overrides=["train.steps=3", "train.curriculum.levels=[easy, hard]"])
    assert changed.train.steps == 3
    assert changed.train.curriculum.levels == ["easy", "hard"]
    same = {"steps", "curriculum"}
    assert changed.train.model_dump(exclude=same) == Params().train.model_dump(exclude=same)


def test_a_bare_off_is_a_word() -> None:
    assert config.resolve(overrides=["train.curriculum.mode=off"]).train.curriculum.mode == "off"


def test_a_profile_lies_between_params_and_overrides(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles/big.yaml").write_text("train: {steps: 7, group_size: 4}\n")
    params = config.resolve("big", ["train.steps=9"])
    assert (params.profile, params.train.steps, params.train.group_size) == ("big", 9, 4)


def test_resolved_settings_come_back_equal_and_are_written_once(folder: Path) -> None:
    params = config.resolve(overrides=["train.steps=3", "validate.min_rows=5"])
    path = config.write_resolved(params)
    written = path.stat().st_mtime_ns
    assert config.load_resolved() == params
    config.write_resolved(params)
    assert path.stat().st_mtime_ns == written
    assert [p.name for p in folder.iterdir() if "resolved" in p.name] == [path.name]


def derived(*overrides: str) -> dict[str, str]:
    config.write_resolved(config.resolve(overrides=overrides))
    found: dict[str, str] = yaml.safe_load(config.RESOLVED.read_text())["derived"]
    return found


def test_an_old_name_in_the_users_own_files_gets_one_message(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles/mine.yaml").write_text("train: {parity: {every: 5}}\n")
    with pytest.raises(ConfigError) as caught:
        config.resolve("mine")
    says = "params.yaml + profiles/mine.yaml: train.parity: renamed to train.logprob_check"
    assert str(caught.value) == says


def test_new_names_are_settings_and_old_ones_are_not() -> None:
    known = Params().model_dump(by_alias=True)

    def there(key: str) -> bool:
        section: Any = known
        for part in key.split("."):
            if not isinstance(section, dict) or part not in section:
                return False
            section = section[part]
        return True

    assert all(there(new) and not there(old) for old, new in RENAMED.items())
    assert not any(there(old) for old in REMOVED)


@pytest.mark.parametrize("old", REMOVED)
def test_a_removed_setting_says_what_to_do(old: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(old)}: removed \(.*\)\. Delete it\.$"):
        config.resolve(overrides=[f"{old}=1"])


def test_settings_of_an_earlier_version_are_translated(folder: Path) -> None:
    params = config.resolve(overrides=["push.remote=backup", "train.logprob_check.every=7"])
    data: Any = params.model_dump(by_alias=True, mode="json")
    for old, new in RENAMED.items():
        *parents, last = new.split(".")
        section = data
        for part in parents:
            section = section[part]
        value = section.pop(last)
        section[old.rpartition(".")[2]] = value
    for old in REMOVED:
        *parents, last = old.split(".")
        section = data
        for part in parents:
            section = section[part]
        section[last] = "a value of then"
    Path("old.yaml").write_text(yaml.safe_dump(data))
    assert config.read_resolved(Path("old.yaml")) == params
    Path("old.yaml").write_text("train: {stpes: 3}\n")
    with pytest.raises(ConfigError, match=r"old.yaml: train.stpes: unknown key"):
        config.read_resolved(Path("old.yaml"))


def test_what_dvc_derives_follows_the_settings(folder: Path) -> None:
    assert derived("train.method=full")["trained"] == "models/policy"
    assert (ROOT / derived()["template"]).is_file()
    (folder / "mine.jinja").touch()
    assert derived("model.template=mine.jinja")["template"] == "mine.jinja"


def test_arguments_of_a_chat_template_keep_their_types() -> None:
    given = "model.template_kwargs={enable_thinking: false, date_string: 26 Jul 2024, n: 1}"
    found = config.resolve(overrides=[given]).model.template_kwargs
    assert found == {"enable_thinking": False, "date_string": "26 Jul 2024", "n": 1}
    assert found["enable_thinking"] is False
    for wrong in ("{a b: 1}", "{a: null}", "{a: [1]}", "{a: .nan}"):
        with pytest.raises(ConfigError, match=r"model\.template_kwargs"):
            config.resolve(overrides=[f"model.template_kwargs={wrong}"])


def test_only_demonstrations_depend_on_problems_and_rewards() -> None:
    nano = derive(Params())
    assert {nano[name] for name in DEMONSTRATED} == {"tasks/warmstart.py"}
    assert nano == derive(config.resolve(overrides=["rewards.free_misses=4"]))
    sft = ["warmstart.kind=sft", "model.source=Qwen/Qwen3-4B"]
    shown = derive(config.resolve(overrides=sft))
    assert {name: shown[name] for name in DEMONSTRATED} == DEMONSTRATED
    other = derive(config.resolve(overrides=[*sft, "rewards.free_misses=4"]))
    assert {name for name in shown if shown[name] != other[name]} == {"sft_settings"}
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["warmstart"]
    assert {f"${{derived.{name}}}" for name in DEMONSTRATED} <= set(stage["deps"])
    assert "derived.sft_settings" in stage["params"][0]["params.resolved.yaml"]


def test_dvc_watches_the_users_files_while_they_are_the_source(folder: Path) -> None:
    modules = derived()
    assert (ROOT / modules["problems"]).is_file()
    assert (ROOT / modules["documents"]).is_file()
    (folder / "mine.jsonl").touch()
    (folder / "papers").mkdir()
    files = ("prepare.source=files", "prepare.files.path=mine.jsonl")
    assert derived(*files)["problems"] == "mine.jsonl"
    assert derived(*files)["documents"] == modules["documents"]
    assert derived(*files, "prepare.files.documents=papers")["documents"] == "papers"
    assert derived("prepare.source=hub", "prepare.hub.name=mine.jsonl")["problems"] == "mine.jsonl"
    # Without them DVC could only say that something is missing; the stage says what.
    assert derived("prepare.source=files", "prepare.files.path=absent.jsonl") == modules
    assert derived("prepare.source=hub") == modules


@pytest.mark.parametrize("source", ["hub", "files"])
def test_the_other_sources_have_their_own_levels(source: str) -> None:
    of_source = config.resolve(overrides=[f"prepare.source={source}", "env.limits.max_children=2"])
    assert of_source.prepare.levels == ["easy", "hard", "medium"]
    with pytest.raises(ConfigError, match=r"train\.curriculum\.levels: 'brutal'"):
        config.resolve(
            overrides=[f"prepare.source={source}", "train.curriculum.levels=[easy, brutal]"]
        )


def fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The dotted path of every setting; entries of mappings count by their model."""
    for name, field in model.model_fields.items():
        key = f"{path}{field.alias or name}"
        inner = [
            part
            for part in (field.annotation, *get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        if inner:
            yield from fields(inner[0], f"{key}.")
        else:
            yield key


def attributes_read() -> set[str]:
    """Names that code outside the settings reads from some object."""
    names: set[str] = set()
    folders = ("agent", "assistant", "env", "flows", "mlflow", "rewards", "tasks")
    for path in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        if path.name != "settings.py":
            tree: Any = ast.parse(path.read_text(encoding="utf-8"))
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names


def test_every_setting_is_read_by_some_code() -> None:
    read = attributes_read()
    # The weights are read by the names of the components, through getattr.
    settings = [key for key in fields(Params) if not key.startswith("rewards.weights.")]
    unused = [key for key in settings if key.rpartition(".")[2] not in read]
    assert unused == []


@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "null", "[1]"])
def test_nonsense_numbers_are_refused(value: str) -> None:
    for key in ("train.steps", "train.learning_rate", "env.limits.cell_cpu_s"):
        with pytest.raises(ConfigError, match=re.escape(key)):
            config.resolve(overrides=[f"{key}={value}"])


def test_more_processes_than_groups_are_refused():
    with pytest.raises(ConfigError, match=r"train: .*processes 3 exceeds problems_per_step 2"):
        config.resolve(overrides=["train.processes=3", "train.problems_per_step=2"])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.source=Qwen/Qwen3-4B"], "warmstart.kind: nano is not Qwen/Qwen3-4B. Set none"),
        (["model.quantisation=nf4"], "model.quantisation: nano has no 4-bit weights"),
        (
            [
                *("model.source=Qwen/Qwen3-4B", "warmstart.kind=none"),
                *("model.quantisation=nf4", "train.method=full"),
            ],
            "train.method: full cannot train 4-bit weights",
        ),
        (["model.quantisation=int8"], "model.quantisation: Input should be 'none' or 'nf4'"),
        (["train.lora.targets=[]"], "train.lora.targets: List should have at least 1 item"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(overrides=overrides)
    assert told in str(caught.value)


def test_a_champion_may_be_quantised_to_train_on() -> None:
    overrides = ["warmstart.kind=champion", "model.quantisation=nf4"]
    assert config.resolve(overrides=overrides).model.quantisation == "nf4"


def test_dvc_watches_the_base_models_folder_while_it_is_the_source(folder: Path) -> None:
    (folder / "nano").mkdir()  # not the source that is called nano
    assert (ROOT / derived()["model"]).is_file()
    (folder / "mine").mkdir()
    assert derived("model.source=mine", "warmstart.kind=none")["model"] == "mine"
    on_hub = derived("model.source=Qwen/Qwen3-4B", "warmstart.kind=none")["model"]
    assert (ROOT / on_hub).is_file()
