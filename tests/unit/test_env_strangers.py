"""Clients without the owner's key: other splits are unknown, figures have two digits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from env import auth
from env.errors import RefusedError, SettingsError
from env.models import AnswerMetrics
from env.problems.schema import Problem, to_row
from env.problems.settings import SyntheticSettings
from env.problems.store import ProblemStore
from env.server.environment import RLMEnvironment
from env.server.rounding import _two_digits, rounded
from env.server.service import PrepareSection, ServerSettings, Service, read_settings
from env.settings import EnvSettings
from rewards.combine import EpisodeFacts, score
from rewards.settings import RewardSettings

KEY = "k" * 40
STORE = ProblemStore.generate(
    SyntheticSettings(collections={"train": 3, "validation": 1, "test": 2}, seed=9)
)
REWARDS = RewardSettings()

Line = tuple[str, int, int]
"""Paper and place of a sentence: the unit of evidence in the small world."""
Figures = dict[str, Any]


def service(
    splits: list[str] | None = None,
    key: str | None = KEY,
    source: str = "synthetic",
    store: ProblemStore = STORE,
) -> Service:
    environ = {} if key is None else {auth.OWNER_KEY: key}
    env = EnvSettings.model_validate({"splits": splits or ["train"]})
    update = {"env": env, "prepare": PrepareSection(source=source)}
    return Service(read_settings(environ).model_copy(update=update), store)


def test_by_default_everyone_plays_every_problem() -> None:
    open_to_all = Service(ServerSettings(), STORE)
    assert open_to_all.problems_for() is STORE
    assert open_to_all.problems_for("any key, since none is needed") is STORE


def test_without_the_key_only_the_named_splits_exist() -> None:
    problems = service(["train", "validation"]).problems_for()
    assert problems.ids() == [*STORE.ids("train"), *STORE.ids("validation")]
    assert len(problems) < len(STORE)
    assert problems.get(STORE.ids("train")[0]) == STORE.get(STORE.ids("train")[0])


def test_the_key_opens_every_problem() -> None:
    assert service().problems_for(KEY) is STORE


@pytest.mark.parametrize(("given", "key"), [("x" * 40, KEY), ("\ud800", KEY), (KEY, None)])
def test_a_wrong_key_is_refused(given: str, key: str | None) -> None:
    with pytest.raises(RefusedError, match="owner_key is wrong"):
        service(key=key).problems_for(given)


def test_a_short_key_stops_the_server_and_is_not_printed() -> None:
    with pytest.raises(SettingsError, match="fewer than 32 characters") as caught:
        read_settings({auth.OWNER_KEY: "s3cret"})
    assert "s3cret" not in str(caught.value)
    assert KEY not in repr(read_settings({auth.OWNER_KEY: KEY}))


def test_splits_without_problems_stop_the_server() -> None:
    only_train = STORE.of_splits(["train"])
    env = EnvSettings(splits=["test"])
    with pytest.raises(SettingsError, match=r"no problem of test\. Change env\.splits"):
        Service(ServerSettings(env=env), only_train)


def test_without_the_key_no_difficulty_tells_the_number_of_gold_papers() -> None:
    for rows in ([to_row(STORE.get(name)) for name in STORE.ids()], map(STORE.get, STORE.ids())):
        store = ProblemStore(rows, "files")
        of_files = partial(service, source="files", store=store)
        seen = of_files().problems_for()
        assert seen.difficulties() == [""]
        assert {seen.get(name).difficulty for name in seen.ids()} == {""}
        assert RLMEnvironment(of_files).reset(difficulty="easy").refused
        assert of_files().problems_for(KEY).difficulties() == STORE.difficulties()
    assert service().problems_for().difficulties() == STORE.difficulties()


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


def test_the_key_of_a_reset_is_a_text() -> None:
    restricted = service()
    environment = RLMEnvironment(lambda: restricted)
    assert environment.reset(owner_key=5).refused == "owner_key must be a string"  # type: ignore[arg-type]


# --- figures


def played(problem: Problem, answer: Sequence[Line]) -> Figures:
    """Exact figures of an episode with one turn and this answer."""
    places = [{"paper_id": paper, "start": a, "end": b} for paper, a, b in answer]
    facts = EpisodeFacts(
        papers={paper.paper_id: paper.text for paper in problem.papers},
        evidence=[[(s.paper_id, s.start, s.end) for s in fact.spans] for fact in problem.evidence],
        answer=places,
        answered=True,
        papers_read=frozenset(),
        turns=1,
        turns_with_error=0,
        turns_with_one_block=1,
        sub_calls=0,
    )
    found = score(facts, REWARDS)
    return {
        "reward": found.total,
        "components": found.components,
        "metrics": AnswerMetrics.model_validate(found, from_attributes=True),
        "frame_scores": {1: 1 / 3},
    }


def lines(problem: Problem) -> list[Line]:
    """Sentences of all papers, titles included."""
    found = []
    for paper in problem.papers:
        start = 0
        for line in paper.text.split("\n"):
            found.append((paper.paper_id, start, start + len(line)))
            start += len(line) + 1
    return found


def gold(problem: Problem) -> set[Line]:
    return {(s.paper_id, s.start, s.end) for fact in problem.evidence for s in fact.spans}


def characters(part: Sequence[Line]) -> int:
    return sum(end - start for _, start, end in part)


def halve(part: Sequence[Line], right: Callable[[Sequence[Line]], int]) -> set[Line]:
    """Gold by halving: `right` counts the characters of gold among some sentences."""
    count = right(part)
    if count in (0, characters(part)) or len(part) == 1:
        return set(part) if count else set()
    middle = len(part) // 2
    return halve(part[:middle], right) | halve(part[middle:], right)


NINE = [STORE.get(name) for level in STORE.difficulties() for name in STORE.ids("test", level)[:3]]


def attacked(problem: Problem, seen: Callable[[Figures], Figures]) -> tuple[set[Line], int]:
    """Gold that halving by `precision x characters` finds, and the episodes that it played."""
    episodes = 0

    def right(part: Sequence[Line]) -> int:
        nonlocal episodes
        episodes += 1
        precision: float = seen(played(problem, part))["metrics"].precision
        return round(precision * characters(part))

    return halve(lines(problem), right), episodes


def test_halving_finds_all_gold_in_exact_figures() -> None:
    found = [attacked(problem, seen=lambda figures: figures) for problem in NINE]
    assert [part for part, _ in found] == [gold(problem) for problem in NINE]
    assert max(episodes for _, episodes in found) < 64


def test_two_digits_alone_would_not_stop_halving() -> None:
    def two_digits(figures: Figures) -> Figures:
        return {"metrics": AnswerMetrics(**_two_digits(dict(figures["metrics"])))}

    found = [attacked(problem, seen=two_digits) for problem in NINE]
    assert [part for part, _ in found] == [gold(problem) for problem in NINE]


def test_halving_finds_no_gold_in_a_strangers_figures() -> None:
    assert [attacked(problem, seen=rounded) for problem in NINE] == [(set(), 1)] * 9


def test_a_reward_always_tells_a_right_sentence_from_a_wrong_one() -> None:
    """The remaining leak: a stranger who guesses every sentence alone sees which ones earn."""
    for problem in NINE:
        earns = {
            line
            for line in lines(problem)
            if rounded(played(problem, [line]))["components"]["primary_objective"] > 0
        }
        assert earns == gold(problem)


def numbers(figures: Figures) -> list[float]:
    metrics = figures["metrics"]
    return [
        figures["reward"],
        *figures["components"].values(),
        *figures["frame_scores"].values(),
        *(metrics.precision, metrics.recall, metrics.f1, metrics.paper_f1),
    ]


def test_no_number_has_more_than_two_digits() -> None:
    hard = NINE[-1]
    exact = played(hard, [*sorted(gold(hard))[:2], lines(hard)[0]])
    shown = rounded(exact)
    assert numbers(shown) == [round(value, 2) for value in numbers(exact)]
    assert numbers(shown) != numbers(exact)
    assert exact["components"]["primary_objective"] > 0


def test_replays_of_an_answer_are_all_rounded_alike() -> None:
    hard = NINE[-1]
    exact = played(hard, [*sorted(gold(hard))[:2], lines(hard)[0]])
    replays = [rounded(exact)["reward"] for _ in range(200)]
    assert abs(sum(replays) / 200 - exact["reward"]) > 1e-3  # a mean reveals no further digit


def test_an_answer_that_earns_nothing_has_no_metrics_and_no_scores_of_children() -> None:
    problem = NINE[0]
    everything = played(problem, lines(problem))
    assert everything["metrics"].recall == 1.0
    shown = rounded(everything)
    assert shown["components"]["primary_objective"] == 0.0
    assert (shown["metrics"].recall, shown["metrics"].paper_f1) == (0.0, 0.0)
    assert shown["frame_scores"] == {}


# --- the client


def test_the_key_goes_to_its_own_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(auth.URL, "https://ada-rlm.hf.space")
    monkeypatch.setenv(auth.OWNER_KEY, KEY)
    for own in ("https://ada-rlm.hf.space/metadata", "wss://ada-rlm.hf.space/ws"):
        assert auth.owner_key(own) == {"owner_key": KEY}
    for other in ("http://ada-rlm.hf.space", "https://evil.example", "http://127.0.0.1:8000"):
        assert auth.owner_key(other) == {}
    assert KEY not in str(auth.headers("https://ada-rlm.hf.space"))


@pytest.mark.parametrize("name", ["websockets.client", "uvicorn.error"])
def test_no_log_record_holds_the_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(auth.URL, "http://127.0.0.1:8000")
    monkeypatch.setenv(auth.OWNER_KEY, KEY)
    auth.owner_key("ws://127.0.0.1:8000")
    service()
    with caplog.at_level(logging.DEBUG, name):
        logger = logging.getLogger(name)
        logger.debug("> TEXT %r", '{"type": "reset", "data": {"owner_key": "kk...' + KEY[:20])
        logger.debug("> TEXT %r", '{"type":"reset","data":{"seed":1,"..."kkkk"}}')
        logger.debug("> TEXT %r", '{"type": "step"}')
    assert KEY[:4] not in caplog.text
    assert "step" in caplog.text


def test_inside_the_block_clients_find_url_token_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (auth.URL, auth.TOKEN, auth.OWNER_KEY):
        monkeypatch.delenv(name, raising=False)
    with auth.addressed("http://here", None, KEY):
        assert auth.owner_key("http://here/ws") == {"owner_key": KEY}
    assert auth.owner_key("http://here/ws") == {}
