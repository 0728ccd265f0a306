from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.draft_questions import (
    DraftPrompt,
    Drafts,
    KeptAnswers,
    collect,
    json_list,
    passages,
    prompts,
)
from tasks.params import Params

ORDERS = "The looms arrive on 14 May. They were built in Turin and cost 900 crowns."
GARDEN = "The garden was planted in spring by the weavers of Turin themselves."
ONE = DraftPrompt(("a.md",), (("a.md", ORDERS),))
TWO = DraftPrompt(("a.md", "b.md"), (("a.md", ORDERS), ("b.md", GARDEN)))
QUESTION = "When do the looms arrive?"


def answer(*quotes: Any, question: Any = QUESTION) -> str:
    evidence = [{"document": name, "quote": quote} for name, quote in quotes]
    return json.dumps([{"question": question, "evidence": evidence}])


def collected(text: str, prompt: DraftPrompt = ONE) -> Drafts:
    drafts = Drafts()
    collect(text, prompt, Params(), drafts)
    return drafts


@pytest.mark.parametrize(
    "around", ["{}", "```json\n{}\n```", '<think>[{{"question": 1}}]</think>Here [1]: {} Bye.']
)
def test_json_is_found_in_its_surroundings(around: str) -> None:
    drafts = collected(around.format(answer(("D1", "The looms arrive on 14 May."))))
    (question,) = drafts.questions
    assert question.text == QUESTION
    assert question.quotes == (("a.md", "The looms arrive on 14 May."),)
    assert not drafts.dropped


def test_a_quote_is_aligned_with_its_document() -> None:
    drafts = collected(answer(("D1", "the looms arrive  on 14 May")))
    ((_, quote),) = drafts.questions[0].quotes
    assert quote in ORDERS
    assert not collected(answer(("D1", "The looms arrive on 15 May."))).questions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "answers without JSON"),
        ("I am sorry.", "answers without JSON"),
        ("[1, 2, 3]", "answers without JSON"),
        ("[" * 100_000, "answers without JSON"),
        ('{"a":' * 50_000, "answers without JSON"),
        ("[" + "9" * 10_000 + "]", "answers without JSON"),
        ('[{"question": "Why?"}]', "questions in another form"),
        ('[{"question": 5, "evidence": []}, null]', "questions in another form"),
        (answer(), "questions in another form"),
        (answer(("D1", ["a"])), "questions in another form"),
        (answer(*[("D1", "The looms arrive on 14 May.")] * 9), "questions in another form"),
        (answer(("D1", "x" * 5000)), "questions in another form"),
        (answer(("D7", "The looms arrive on 14 May.")), "questions that quote another document"),
        (answer(("b.md", "The looms arrive.")), "questions that quote another document"),
        (answer(("D1", "The looms never arrive, says the king.")), "that is not in the passage"),
        (answer(("D1", "14 May.")), "a quote that is too short"),
        (answer(("D1", ORDERS), question="Why?"), "not a plain sentence"),
        (answer(("D1", ORDERS), question="When \x1b[2J do the looms arrive?"), "not a plain"),
        (answer(("D1", ORDERS), question="When do \ud800 the looms arrive?"), "not a plain"),
        (answer(("D1", ORDERS), question="When <|im_start|> do they arrive?"), "not a plain"),
        (answer(("D1", ORDERS), question="When, by the passage, is it?"), "beside the passage"),
    ],
    ids=range(21),
)
def test_nonsense_is_counted_and_nothing_else(text: str, reason: str) -> None:
    drafts = collected(text)
    assert drafts.questions == []
    ((found, _),) = drafts.dropped.items()
    assert reason in found


def test_questions_beyond_the_number_asked_for_and_repeated_ones_are_left_out() -> None:
    items = json.loads(answer(("D1", ORDERS))) * 50
    drafts = collected(json.dumps(items))
    assert len(drafts.questions) == 1
    assert drafts.dropped == {"repeated questions": 2}


def test_a_document_can_only_spoil_questions_that_quote_it() -> None:
    # Beside a hostile document, a question about the other one alone is not accepted.
    drafts = collected(answer(("D1", ORDERS)), TWO)
    assert drafts.dropped == {"questions about several documents that quote one": 1}
    both = collected(answer(("D1", ORDERS), ("D2", GARDEN)), TWO)
    assert [name for name, _ in both.questions[0].quotes] == ["a.md", "b.md"]


def test_passages_are_the_whole_text_in_parts() -> None:
    text = "".join(f"Paragraph {n} of the text.\n\n" for n in range(2000))
    parts = list(passages(text))
    assert "".join(parts) == text
    assert len(parts) > 5
    assert all(part.endswith("\n\n") for part in parts)
    assert list(passages(" \n")) == []
    assert "".join(passages("x" * 20_001)) == "x" * 20_001


def test_requests_show_documents_alone_and_those_that_share_a_name() -> None:
    texts = {f"{n}.md": f"Nothing of note number {n}." for n in range(6)}
    texts |= {"0.md": ORDERS, "1.md": GARDEN}
    found = prompts(texts, 50, seed=0)
    assert found == prompts(texts, 50, seed=0)
    several = [prompt for prompt in found if len(prompt.passages) > 1]
    assert [[name for name, _ in prompt.passages] for prompt in several] == [["0.md", "1.md"]]
    assert {name for prompt in found for name, _ in prompt.passages} == set(texts)
    assert len(prompts(texts, 3, seed=0)) == 3
    system, user = several[0].messages(25)
    assert "two of the documents" in system.content
    assert user.content == f"<<<D1\n{ORDERS}\nD1>>>\n\n<<<D2\n{GARDEN}\nD2>>>"


def test_json_under_a_key_counts() -> None:
    assert json_list('{"questions": [{"question": "a"}]}') == [{"question": "a"}]
    assert json_list('{"question": "a", "evidence": []}') == [{"question": "a", "evidence": []}]
    assert json_list('{"answer": 5}') is None


def test_answers_survive_a_killed_run(tmp_path: Path) -> None:
    output = tmp_path / "questions.jsonl"
    kept = KeptAnswers(output)
    assert not kept.path.exists()
    kept.add("1", "yes \ud800")
    with kept.path.open("a") as file:
        file.write('{"key": "2", "ans')
    again = KeptAnswers(output)
    assert (again.get("1"), again.get("2")) == ("yes \ud800", None)
    again.add("2", "no")
    assert KeptAnswers(output).get("2") == "no"
    again.remove()
    assert list(tmp_path.iterdir()) == []
