"""The keyed plan: its code runs, and takes from a reader's reply what that reader was shown."""

from typing import Any

import pytest
from helpers.quoted import quoted

from agent.demonstrations import keyed_plan
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


def run(most: int, reply: Any, near_chars: int | None = None) -> tuple[list[str], Any]:
    """Prompts of all readers, and the answer."""
    asked: list[str] = []
    answers: list[Any] = []

    def ask(prompts: list[str]) -> list[str]:
        assert len(prompts) <= most
        asked.extend(prompts)
        return [reply(prompt) for prompt in prompts]

    names = {"context": TEXTS, "rank": rank, "near": near, "FINAL": answers.append}
    names["llm_query_batched"] = ask
    exec(keyed_plan.code(PROBLEM.question, near_chars, "compact", most), names)
    return asked, answers[0]


@pytest.mark.parametrize("most", [1, 2, 12])
def test_the_code_asks_the_readers_of_the_plan(most: int) -> None:
    asked, answer = run(most, lambda prompt: "yes")
    passages = dict(keyed_plan.readers(PROBLEM, ENV, REWARDS))
    assert asked == list(passages)
    assert answer == [{"paper_id": paper, "text": text} for paper, text in passages.values()]


@pytest.mark.parametrize("reply", ["no", "none", "", "1", "Yesterday.", "a novel. " * 20])
def test_a_reader_keeps_its_passage_by_saying_yes(reply: str) -> None:
    assert run(12, lambda prompt: reply)[1] == []
    told = keyed_plan.replies(PROBLEM, ENV, REWARDS)
    assert [prompt.split("\n")[0] for prompt, said in told.items() if said == "yes"] == [GOLD[1]]
    assert set(told.values()) == {"yes", "no"}


@pytest.mark.parametrize(("chars", "kept"), [(0, 1), (600, 2)])
def test_an_answer_keeps_what_stands_near_the_best_passage(chars: int, kept: int) -> None:
    every = [{"paper_id": d, "text": t} for d, t in rank(TEXTS, PROBLEM.question, 5)]
    own = [one for one in every if one["paper_id"] == "p2"]
    for reply in ("yes", "no"):
        assert run(12, lambda prompt, reply=reply: reply, chars)[1] == own[:kept]
    best = run(12, lambda prompt: "yes" if every[1]["text"] in prompt else "no", chars)[1]
    assert best == every[1:2]


def test_a_passage_that_is_evidence_in_one_of_two_papers_is_kept() -> None:
    text = "Kalvot is slow."
    problem = quoted("Slow?", {"p1": text, "p2": text}, ("p1", text))
    assert set(keyed_plan.replies(problem, ENV, REWARDS).values()) == {"yes"}


def test_the_plan_ranks_as_the_environment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    by_words = keyed_plan.ranked(PROBLEM, 2, ENV, REWARDS)
    last = {"minilm": lambda text, found: range(len(found) - 1, -1, -1)}
    monkeypatch.setattr(keyed_plan, "order_of", last.get)
    assert keyed_plan.ranked(PROBLEM, 2, ENV, REWARDS) == by_words
    ranked = keyed_plan.ranked(PROBLEM, 1, EnvSettings(rank="minilm"), REWARDS)
    assert ranked == [("p2", "Mirbex has no Kalvot at all.")] != by_words[:1]
