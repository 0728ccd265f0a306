"""Clients without the owner's key: other splits are unknown, and some difficulties are hidden."""

import logging
from functools import partial
from typing import Any

import pytest

from env import variables
from env.errors import RefusedError, SettingsError
from env.problems.fields import SyntheticSettings
from env.problems.schema import to_row
from env.problems.store import ProblemStore
from env.server.environment import RLMEnvironment
from env.server.service import PrepareSection, ServerSettings, Service, read_settings
from env.settings import EnvSettings

KEY = "k" * 40
STORE = ProblemStore.generate(
    SyntheticSettings(collections={"train": 3, "validation": 1, "test": 2}, seed=9)
)


def service(
    splits: list[str] | None = None,
    key: str | None = KEY,
    source: str = "synthetic",
    store: ProblemStore = STORE,
) -> Service:
    environ = {} if key is None else {variables.OWNER_KEY: key}
    env = EnvSettings.model_validate({"splits": splits or ["train"]})
    update = {"env": env, "prepare": PrepareSection(source=source)}
    return Service(read_settings(environ).model_copy(update=update), store)


def test_without_the_key_only_the_named_splits_exist() -> None:
    problems = service(["train", "validation"]).problems_for()
    assert problems.ids() == [*STORE.ids("train"), *STORE.ids("validation")]
    assert len(problems) < len(STORE)
    assert problems.get(STORE.ids("train")[0]) == STORE.get(STORE.ids("train")[0])


def test_a_stranger_reads_no_seed() -> None:
    """With the seed of the settings file, everybody could generate the gold."""
    assert STORE.source == "synthetic, seed 9"
    assert service().problems_for().source == "synthetic, secret seed"
    of_files = ProblemStore([to_row(STORE.get(STORE.ids("train")[0]))], "data/problems")
    assert service(source="files", store=of_files).problems_for().source == "data/problems"


@pytest.mark.parametrize(("given", "key"), [("x" * 40, KEY), ("\ud800", KEY), (KEY, None)])
def test_a_wrong_key_is_refused(given: str, key: str | None) -> None:
    with pytest.raises(RefusedError, match="owner_key is wrong"):
        service(key=key).problems_for(given)


def test_a_short_key_stops_the_server_and_is_not_printed() -> None:
    with pytest.raises(SettingsError, match="fewer than 32 characters") as caught:
        read_settings({variables.OWNER_KEY: "s3cret"})
    assert "s3cret" not in str(caught.value)
    assert KEY not in repr(read_settings({variables.OWNER_KEY: KEY}))


def test_splits_without_problems_stop_the_server() -> None:
    only_train = STORE.of_splits(["train"])
    env = EnvSettings(splits=["test"])
    with pytest.raises(SettingsError, match=r"no problem of test\. Change env\.splits"):
        Service(ServerSettings(env=env), only_train)


def test_without_the_key_no_difficulty_tells_the_number_of_gold_papers() -> None:
    for rows in ([to_row(STORE.get(name)) for name in STORE.ids()], map(STORE.get, STORE.ids())):
        of_files = partial(service, source="files", store=ProblemStore(rows, "files"))
        seen = of_files().problems_for()
        assert seen.difficulties() == [""]
        assert {seen.get(name).difficulty for name in seen.ids()} == {""}
        assert RLMEnvironment(of_files).reset(difficulty="easy").refused
        assert of_files().problems_for(KEY).difficulties() == STORE.difficulties()
    assert service().problems_for().difficulties() == STORE.difficulties("train")


def refusal(environment: RLMEnvironment, **arguments: Any) -> str:
    """Reason of a refused reset, with the argument's own value left out."""
    observation = environment.reset(**arguments)
    assert observation.refused is not None
    assert not observation.frames
    return observation.refused.replace(next(iter(arguments.values())), "...")


def test_a_closed_problem_is_refused_like_an_unknown_one() -> None:
    restricted = service()
    environment = RLMEnvironment(lambda: restricted)
    unknown = refusal(environment, problem_id="no-such-problem")
    assert unknown == "this server has no problem for problem_id '...'"
    for split in ("validation", "test"):
        assert refusal(environment, problem_id=STORE.ids(split)[0]) == unknown
        closed = refusal(environment, split=split, seed=0)
        assert closed == refusal(environment, split="no-such-split", seed=0)


# --- the client


def test_the_key_goes_to_its_own_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.URL, "https://ada-rlm.hf.space")
    monkeypatch.setenv(variables.OWNER_KEY, KEY)
    for own in ("https://ada-rlm.hf.space/metadata", "wss://ada-rlm.hf.space/ws"):
        assert variables.owner_key(own) == {"owner_key": KEY}
    for other in ("http://ada-rlm.hf.space", "https://evil.example", "http://127.0.0.1:8000"):
        assert variables.owner_key(other) == {}
    assert KEY not in str(variables.headers("https://ada-rlm.hf.space"))


@pytest.mark.parametrize("name", ["websockets.client", "uvicorn.error"])
def test_no_log_record_holds_the_key(monkeypatch, caplog, name):
    monkeypatch.setenv(variables.URL, "http://127.0.0.1:8000")
    monkeypatch.setenv(variables.OWNER_KEY, KEY)
    variables.owner_key("ws://127.0.0.1:8000")
    service()
    with caplog.at_level(logging.DEBUG, name):
        logger = logging.getLogger(name)
        logger.debug("> TEXT %r", '{"type": "reset", "data": {"owner_key": "kk...' + KEY[:20])
        logger.debug("> TEXT %r", '{"type":"reset","data":{"seed":1,"..."kkkk"}}')
        logger.debug("> TEXT %r", '{"type": "step"}')
    assert KEY[:4] not in caplog.text
    assert "step" in caplog.text
