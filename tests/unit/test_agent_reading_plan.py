"""The demonstrator's choices: words that a frame has read, and passages to quote."""

from __future__ import annotations

import pytest
from helpers.quoted import quoted

from agent.demonstrations import reading_plan as plan
from env.settings import LimitSettings
from rewards.settings import RewardSettings

LIMITS, REWARDS = LimitSettings(), RewardSettings(min_span_chars=10)
TEXTS = {
    "p1": "On Kalvot\nKalvot (KVT) reads maps. Its accuracy is 71. Nothing else was tried.",
    "p2": "On maps\nWe like maps. KVT is slow on long roads. Others are faster.",
    "p3": "On roads\nRoads are long. Mirbex knows them.",
}


def test_words_of_a_search_find_all_facts_and_few_papers() -> None:
    asked = quoted(
        "How accurate is Kalvot, and is KVT slow on roads?",
        TEXTS,
        ("p1", "Its accuracy is 71."),
        ("p2", "KVT is slow on long roads."),
    )
    words = plan.search_words(asked)
    assert words == ["KVT"]
    assert plan.papers_to_read(asked, words, extra=1) == ["p1", "p2"]
    assert plan.papers_to_read(asked, ["maps", "Mirbex"], extra=1) == ["p1", "p2", "p3"]
    assert plan.papers_to_read(asked, ["Mirbex"], extra=0) is None


def test_a_look_uses_only_words_that_the_frame_has_read() -> None:
    text = TEXTS["p2"]
    missing = plan.gold_in(quoted("Is it slow?", TEXTS, ("p2", "KVT is slow on long roads.")), "p2")
    assert plan.look_words(text, missing, "Is Kalvot tired?", 0, 500) is None
    assert plan.look_words(text, missing, "Is Kalvot (KVT) tired?", 0, 500) == ["KVT"]
    assert plan.look_words(text, missing, "Is KVT slow?", 0, chars=10) is None


@pytest.mark.parametrize(
    ("gold", "texts", "why"),
    [
        ("Its accuracy is 71.", TEXTS, None),
        ("is 71.", TEXTS, "spans are too short"),
        ("A twin line.", {"p1": "A twin line. Between. A twin line."}, "also occur elsewhere"),
        ("Its accuracy is 71.", {"p1": TEXTS["p1"] + " so on" * 50}, "too many for a child"),
    ],
)
def test_problems_whose_gold_cannot_be_quoted_have_a_fault(gold, texts, why):
    found = plan.fault(
        quoted("Which?", texts, ("p1", gold)),
        LIMITS.model_copy(update={"child_context_chars": 200}),
        REWARDS,
    )
    assert found is None if why is None else why in str(found)
