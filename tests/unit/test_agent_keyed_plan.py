"""The keyed plan: its code runs, and takes from a reader's reply what that reader was shown."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.quoted import quoted

from agent.demonstrations import keyed_plan
from agent.demonstrations.keyed_plan import Keyed
from env.ranking import near, rank
from env.settings import EnvSettings
from rewards.settings import RewardSettings

TEXTS = {
    "p1": "Kalvot reads maps.\n\nKalvot is slow on long roads, as all are.\n\nKalvot was not here.",
    "p2": "Kalvot is slow on maps.\n\nMirbex has no Kalvot at all.",
}
ENV, REWARDS = EnvSettings(), RewardSettings()


GOLD = ("p1", "Kalvot is slow on long roads, as all are.")
PROBLEM = quoted('Is "Kalvot" slow?', TEXTS, GOLD)


def run(keyed: Keyed, most: int, reply: Any) -> tuple[list[str], Any]:
    """Prompts of all readers, and the answer."""
    asked: list[str] = []
    answers: list[Any] = []

    def ask(prompts: list[str]) -> list[str]:
        assert len(prompts) <= most
        asked.extend(prompts)
        return [reply(prompt) for prompt in prompts]

    names = {"context": TEXTS, "rank": rank, "near": near, "FINAL": answers.append}
    names["llm_query_batched"] = ask
    exec(keyed_plan.code(PROBLEM.question, keyed, "compact", most), names)
    return asked, answers[0]


@pytest.mark.parametrize("keyed", [Keyed(5, 1), Keyed(5, 2), Keyed(24, 8)])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_the_code_asks_the_readers_of_the_plan(keyed: Keyed, most: int) -> None:
    asked, answer = run(keyed, most, lambda prompt: "yes" if keyed.shown == 1 else "1")
    parts = dict(keyed_plan.readers(PROBLEM, keyed, ENV, REWARDS))
    assert asked == list(parts)
    assert answer == [{"paper_id": part[0][0], "text": part[0][1]} for part in parts.values()]
    assert len(asked) <= keyed.readers


@pytest.mark.parametrize(
    "reply",
    [
        *("none", "", "3 4 99", "-1", "1.", "\u0661", "\u00b9", "9" * 10_000, "error: too long"),
        *("a novel of 1000 words, " * 99, "0 1e0 0x1 +1 01"),
    ],
)
def test_a_reply_without_a_number_that_was_shown_adds_nothing(reply: str) -> None:
    assert run(Keyed(4, 2), 8, lambda prompt: reply)[1] == []


@pytest.mark.parametrize("reply", ["no", "none", "", "1", "Yesterday.", "a novel. " * 20])
def test_a_reader_of_one_passage_keeps_it_by_saying_yes(reply: str) -> None:
    assert run(Keyed(4, 1), 8, lambda prompt: reply)[1] == []
    assert len(run(Keyed(4, 1), 8, lambda prompt: "yes")[1]) == 4
    told = keyed_plan.replies(PROBLEM, Keyed(5, 1), ENV, REWARDS)
    assert [prompt.split("\n")[0] for prompt, said in told.items() if said == "yes"] == [GOLD[1]]
    assert set(told.values()) == {"yes", "no"}


@pytest.mark.parametrize(("chars", "kept"), [(0, 1), (600, 2)])
def test_an_answer_keeps_what_stands_near_the_best_passage(chars: int, kept: int) -> None:
    every = [{"paper_id": d, "text": t} for d, t in rank(TEXTS, PROBLEM.question, 5)]
    own, keyed = [one for one in every if one["paper_id"] == "p2"], Keyed(5, 1, chars)
    for reply in ("yes", "no"):
        assert run(keyed, 8, lambda prompt, reply=reply: reply)[1] == own[:kept]
    best = run(keyed, 8, lambda prompt: "yes" if every[1]["text"] in prompt else "no")[1]
    assert best == every[1:2]


def test_a_passage_that_is_evidence_in_one_of_two_papers_is_kept() -> None:
    text = "Kalvot is slow."
    problem = quoted("Slow?", {"p1": text, "p2": text}, ("p1", text))
    assert set(keyed_plan.replies(problem, Keyed(5, 1), ENV, REWARDS).values()) == {"yes"}


def test_readers_reply_the_numbers_of_gold_or_none() -> None:
    replies = keyed_plan.replies(PROBLEM, Keyed(5, 2), ENV, REWARDS)
    assert sorted(replies.values()) == ["2", "none", "none"]
    (prompt,) = (prompt for prompt, reply in replies.items() if reply == "2")
    assert prompt.split("\n")[2] == "2 Kalvot is slow on long roads, as all are."


def test_the_plan_ranks_as_the_environment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    by_words = keyed_plan.ranked(PROBLEM, 2, ENV, REWARDS)
    last = {"minilm": lambda text, found: range(len(found) - 1, -1, -1)}
    monkeypatch.setattr(keyed_plan, "order_of", last.get)
    assert keyed_plan.ranked(PROBLEM, 2, ENV, REWARDS) == by_words
    ranked = keyed_plan.ranked(PROBLEM, 1, EnvSettings(rank="minilm"), REWARDS)
    assert ranked == [("p2", "Mirbex has no Kalvot at all.")] != by_words[:1]
