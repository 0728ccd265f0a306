from __future__ import annotations

import time

import pytest

from tasks.data.question_rules import by_rules, groups, interleaved, names, sentences

DOCUMENTS = {
    "a.md": (
        "# The Halden survey\n\nThe Halden survey is a study of 14 lakes in the north. "
        "It was led by Dr. Ida Moe and paid by the Borg Fund.\n\n"
        "| lake | depth |\n|---|---|\n| Femund | 131 |\n\n"
        "- In spring the boats of Ida Moe were repaired in Rena.\n"
    ),
    "b.md": "All samples went to Tromsberg by train. The trip to Tromsberg took 3 days in winter.",
    "c.md": "Later the Borg Fund asked for a report about the work of the two winters.",
}


def shown(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def test_sentences_are_prose_and_abbreviations_do_not_end_one() -> None:
    assert shown(DOCUMENTS["a.md"]) == [
        "The Halden survey is a study of 14 lakes in the north.",
        "It was led by Dr. Ida Moe and paid by the Borg Fund.",
        "In spring the boats of Ida Moe were repaired in Rena.",
    ]
    fence = "```\nThis line of Code is in a fence and is not prose.\n```\n"
    assert shown(f"{fence}This line is wrapped\nprose here.") == [
        "This line is wrapped\nprose here."
    ]
    assert shown("Too short. " + "Far too long " * 40 + ".") == []


def test_a_name_is_capitalised_within_a_sentence_and_has_all_its_sentences() -> None:
    found = names(DOCUMENTS)
    assert {"Halden", "Ida Moe", "Borg Fund", "Rena", "Tromsberg"} - {"Halden"} <= set(found)
    assert "Later" not in found
    assert "Femund" not in found  # only in a table
    assert [one.document for one in found["Borg Fund"]] == ["a.md", "c.md"]
    assert len(found["Tromsberg"]) == 2
    assert "Boats" not in names({"a": "In spring the Boats and more boats were repaired there."})


def test_questions_quote_all_that_names_their_subject() -> None:
    found = {one.text: one for one in by_rules(DOCUMENTS, 50, seed=0)}
    train = found["Which numbers do the documents give in connection with Tromsberg?"]
    assert train.quotes == (("b.md", "The trip to Tromsberg took 3 days in winter."),)
    assert train.documents == ("b.md",)
    both = by_rules(dict.fromkeys(["a", "b", "c", "d", "e"], "") | DOCUMENTS, 50, seed=0)
    assert not any(len({name for name, _ in one.quotes}) > 1 for one in both)  # not in one group


def test_a_name_of_several_documents_of_a_group_asks_for_all_of_them() -> None:
    texts = {f"{n}.txt": "Nothing is written here yet." for n in range(6)}
    texts["0.txt"] = DOCUMENTS["a.md"]
    texts["1.txt"] = DOCUMENTS["c.md"]
    text = "What do the documents say about Borg Fund? Quote each sentence that names it."
    (several,) = [one for one in by_rules(texts, 50, seed=0) if one.text == text]
    assert [name for name, _ in several.quotes] == ["0.txt", "1.txt"]
    texts["1.txt"] += "\n\n# Borg Fund\n"  # a heading is not a sentence: the gold is incomplete
    assert text not in {one.text for one in by_rules(texts, 50, seed=0)}


def test_a_definition_is_asked_for() -> None:
    text = "The team trusts the Ekofisk field most. Ekofisk is an oil field west of the coast."
    (question,) = by_rules({"a": text}, 1, seed=0)
    assert question.text == "What is Ekofisk, according to the documents?"
    assert question.quotes == (("a", "Ekofisk is an oil field west of the coast."),)


def test_a_seed_gives_the_same_questions_and_another_seed_others() -> None:
    texts = {str(n): f"We met Person{n}x in Town{n}y near Lake{n}z with 3 boats." for n in range(9)}
    once = by_rules(texts, 9, seed=1)
    assert once == by_rules(texts, 9, seed=1)
    assert once != by_rules(texts, 9, seed=2)
    assert {one.documents for one in once} == set(groups([*texts]))  # every document has its turn
    quotes = [one.quotes for one in once]
    assert len(set(quotes)) == len(quotes)


def test_documents_without_names_give_none() -> None:
    assert by_rules({"a": "alles ist klein geschrieben und hat keinen namen darin."}, 5, 0) == []
    assert by_rules({"a": "这是一个没有大写字母的文档。它只有几个句子。"}, 5, 0) == []


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (2, [1, 1]), (7, [2, 2, 2, 1])])
def test_groups_leave_one_for_each_split(count: int, sizes: list[int]) -> None:
    assert [len(group) for group in groups([str(n) for n in range(count)])] == sizes
    assert {len(group) for group in groups([str(n) for n in range(40)])} == {4}


def test_items_take_turns() -> None:
    assert interleaved([[1, 2, 3], [], [4]]) == [1, 4, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "A. " * 60_000,
        "a" * 200_000,
        "A-" * 100_000,
        "\n" * 200_000,
        "- " * 100_000,
        "Aa Bb " * 9000,
    ],
)
def test_a_strange_text_takes_no_more_than_seconds(text: str) -> None:
    start = time.monotonic()
    by_rules({"a": text + ".", "b": "The boats of Ida Moe were repaired in Rena."}, 5, 0)
    assert time.monotonic() - start < 20.0
