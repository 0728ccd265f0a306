"""Settings of a run: params.yaml, a profile and overrides, checked before anything starts.

`resolve` merges the three over the defaults, and `tasks/config/params.py` says what is valid.
`write_resolved` writes `params.resolved.yaml`, which DVC and the stages of a running chain read.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from env import variables
from env.embedding import find_model
from env.errors import SettingsError
from env.settings import flatten
from tasks.config.derived import derive
from tasks.config.params import Params
from tasks.errors import ConfigError
from tasks.io import write_text

PARAMS = Path("params.yaml")
RESOLVED = Path("params.resolved.yaml")
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200
"""Shows values in messages; YAML's anchors make some of them huge."""
PROFILES = Path("profiles")


class UniqueKeys(yaml.CSafeLoader):
    """Loader of LibYAML, ten times as fast as PyYAML's own, that refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node.

        Raises:
            YAMLError: a key is there twice.
        """
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing or does not contain a YAML mapping.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=UniqueKeys)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist. Run from the project's root.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_yaml_fault(error, text)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must contain sections (found {type(data).__name__})")
    return data


def _yaml_fault(error: yaml.YAMLError, text: str) -> str:
    """Line, column and fault of a YAML text."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    line, column = error.problem_mark.line, error.problem_mark.column
    tab = "".join(text.splitlines()[line : line + 1])[column : column + 1] == "\t"
    fix = " Indent with spaces, not tabs." if tab else ""
    return f"line {line + 1}, column {column + 1}: {error.problem}.{fix}"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `base` replaced by those of `over`; nested mappings are merged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """Nested mapping of an override such as `train.steps=3`; the value is YAML.

    Raises:
        ConfigError: `=` is missing, or the value is not valid YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text!r} has no key or no `=`. Write section.key=value.")
    try:
        nested: Any = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2026-13-45
        shown = f"--set {_SHORT.repr(text)}"
        raise ConfigError(f"{shown}: the value is not valid YAML: {error}") from None
    for key in reversed(path.strip().split(".")):
        nested = {key: nested}
    return dict(nested)


def parse_params(data: Mapping[str, Any], source: str) -> Params:
    """Validate plain data; `source` names its origin in messages.

    Raises:
        ConfigError: keys are unknown or values are invalid; the message has a line per key.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        lines = [f"{source}: {_describe(item)}" for item in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(map(str, place))


def _describe(error: ErrorDetails) -> str:
    """Key and fault of a validation error, and the likely meaning of an unknown key."""
    key = _dotted(error["loc"]) or "(whole file)"
    if error["type"] != "extra_forbidden":
        shown = error["type"] not in ("value_error", "missing")
        return f"{key}: {error['msg']}" + (
            f" (found {_SHORT.repr(error['input'])})" if shown else ""
        )
    settings = flatten(Params().model_dump(by_alias=True))
    sections = {name.rpartition(".")[0] for name in settings}
    alike = get_close_matches(key, {*settings, *sections}, n=1)
    return f"{key}: unknown key" + (f". Did you mean {alike[0]}?" if alike else "")


def resolve(profile: str = "nano", overrides: Sequence[str] = ()) -> Params:
    """The defaults, changed by params.yaml, a profile (nano: none), then `section.key=value`s.

    Raises:
        ConfigError: a file is missing or invalid, a setting is wrong, or the model of `env.rank`
            is not installed.
    """
    data = read_yaml(PARAMS)
    source = str(PARAMS)
    if data.get("profile", "nano") != "nano":
        raise ConfigError(
            f"{PARAMS}: profile: this file holds the settings of nano (found {data['profile']!r}). "
            f"Delete the line, and choose a profile with `--profile {data['profile']}`."
        )
    data = merge(Params().model_dump(by_alias=True, mode="json"), data)
    if profile != "nano":
        over = _read_profile(profile)
        source += f" + {PROFILES / profile}.yaml"
        data = merge(merge(data, over), {"profile": profile})
    for text in overrides:
        data = merge(data, parse_override(text))
        source += f" + {text.partition('=')[0]}"  # its value may be a secret
    if "overrides" in data:
        raise ConfigError(f"{source}: overrides: unknown key")
    params = parse_params({**data, "overrides": list(overrides)}, source)
    if params.env.rank == "minilm":
        try:
            find_model()
        except SettingsError as error:
            raise ConfigError(f"{source}: {error}") from None
    return params


def _read_profile(name: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """A profile upon the one that it extends."""
    if name in before:
        raise ConfigError(f"{PROFILES / name}.yaml extends itself: {' > '.join((*before, name))}.")
    path = PROFILES / f"{name}.yaml"
    if not path.exists():
        names = sorted(p.stem for p in PROFILES.glob("*.yaml"))
        raise ConfigError(f"{path} does not exist. Use a profile of {['nano', *names]}.")
    over = read_yaml(path)
    extended = over.pop("extends", None)
    return over if extended is None else merge(_read_profile(str(extended), (*before, name)), over)


def write_resolved(params: Params) -> Path:
    """Write the settings in force, unless the file has them already; returns its path.

    The section `derived` is for dvc.yaml and is not read back.
    """
    if not _is_written(text := _resolved_text(params)):
        write_text(RESOLVED, text)
    return RESOLVED


def _resolved_text(params: Params) -> str:
    data = params.model_dump(by_alias=True, mode="json")
    added = {"overrides": params.overrides, "derived": derive(params)}
    return yaml.safe_dump(data | added, sort_keys=False)


def _is_written(text: str) -> bool:
    return RESOLVED.exists() and RESOLVED.read_text(encoding="utf-8") == text


def read_resolved(path: Path) -> Params:
    """Settings that `write_resolved` wrote, here or for a registered version.

    Raises:
        ConfigError: the file is missing or does not fit this version of the code.
    """
    data = read_yaml(path)
    data.pop("derived", None)
    return parse_params(data, str(path))


def load_resolved() -> Params:
    """Settings in force: those of the running chain, else those of the files as they are now.

    Without a chain, `RESOLVED` only says which profile and which `--set` values apply.

    Raises:
        ConfigError: a file is invalid, or DVC runs this stage by settings from before an edit.
    """
    if variables.CHAIN in os.environ:
        return read_resolved(RESOLVED)
    last: dict[str, Any] = {"profile": "nano", "overrides": []}
    if RESOLVED.exists():
        last = read_yaml(RESOLVED)
    if not {"profile", "overrides"} <= last.keys():
        raise ConfigError(f"{RESOLVED} doesn't say how it was made. Run `rlm resolve` first.")
    params = resolve(last["profile"], last["overrides"])
    if "DVC_STAGE" in os.environ and not _is_written(_resolved_text(params)):
        given = [word for text in params.overrides for word in ("--set", text)]
        again = shlex.join(["rlm", "resolve", "--profile", params.profile, *given])
        raise ConfigError(f"{RESOLVED} is older than your last edit. Run `{again}` first.")
    return params
