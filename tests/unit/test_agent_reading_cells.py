"""Cells of the demonstrator, run as plain Python with the functions of the REPL."""

from __future__ import annotations

from typing import Any

import pytest

from agent.demonstrations import cells as cells
from env.server.sandbox.inside.reading import Reader

PAPERS = {"p1": "Kalvot is slow. It costs 3.", "p2": "Mirbex is fast.", "p3": "Kalvot again."}


class Final(Exception):
    pass


class Played:
    """Variables of a REPL whose sub-calls are recorded."""

    def __init__(self, context: Any) -> None:
        self.asked: list[Any] = []
        self.printed: list[str] = []
        reader = Reader(0, quiet=True)
        self.variables = {
            "context": context,
            "search": reader.search,
            "extract": reader.extract,
            "print": lambda *parts: self.printed.append(" ".join(map(str, parts))),
            "rlm_query_batched": self._children,
            "llm_query_batched": self._readers,
            "FINAL": self._final,
        }

    def _children(self, prompts: list[str], contexts: list[str]) -> list[list[str]]:
        self.asked.append(len(prompts))
        return [[text[:6]] for text in contexts]

    def _readers(self, prompts: list[str]) -> list[str]:
        self.asked += prompts
        return ["1", "none"][: len(prompts)]

    def _final(self, value: Any) -> None:
        raise Final(value)

    def run(self, code: str) -> Any:
        """Argument of FINAL; None without one."""
        try:
            exec(code, self.variables)
        except Final as end:
            return end.args[0]
        return None


def test_a_search_prints_the_papers_with_hits() -> None:
    played = Played(PAPERS)
    played.run(cells.find_papers(["Kalvot", 'it "is"'], 9, quiet=True))
    assert played.printed == ["p1 1 Kalvot is", "p3 1 Kalvot ag"]
    assert Played(PAPERS).run(cells.find_papers(["Kalvot"], 9, quiet=False)) is None


@pytest.mark.parametrize(("most", "calls"), [(8, [2]), (1, [1, 1])])
def test_children_get_the_papers_in_calls_of_the_allowed_size(most: int, calls: list[int]) -> None:
    played = Played(PAPERS)
    answer = played.run(cells.ask_children("Quote: it's?", ["p1", "p3"], most))
    assert answer == [{"paper_id": "p1", "text": "Kalvot"}, {"paper_id": "p3", "text": "Kalvot"}]
    assert played.asked == calls


def test_without_a_choice_children_get_all_papers() -> None:
    played = Played(PAPERS)
    assert len(played.run(cells.ask_children("Quote.", None, 2))) == 3
    assert played.asked == [2, 1]


def test_readers_choose_sentences_by_their_numbers() -> None:
    played = Played(PAPERS)
    played.run(cells.find_sentences("Kalvot"))
    answer = played.run(cells.ask_readers("Which?", 1))
    assert played.printed == ["2"]
    assert played.asked == ["Which?\n0 Kalvot is slow.", "Which?\n1 Kalvot again."]
    assert answer == ["Kalvot again."]


def test_looks_and_pages_print_no_more_than_their_characters() -> None:
    played = Played("Kalvot is slow. Kalvot costs 3.")
    played.run(cells.look(["Kalvot", "slow"], 100, quiet=True))
    played.run(cells.look(["Kalvot"], 8, quiet=True))
    played.run(cells.page(7, 7))
    assert played.printed == ["Kalvot is slow.\nKalvot costs 3.", "Kalvot i", "is slow"]


def test_quotes_are_checked_before_they_are_the_answer() -> None:
    text = 'It says "Kalvot\'s" twice. ' + "Long words follow here, " * 20 + "and end."
    wanted = ['It says "Kalvot\'s" twice.', text[26:]]
    code = cells.quote([cells.quoted(wanted[0]), cells.extracted(wanted[1], 12)])
    assert Played(text).run(code) == wanted
    played = Played(text)
    assert played.run(cells.quote([cells.quoted("It says Kalvot")])) is None
    assert played.printed == ["not verbatim: ['It says Kalvot']"]
    assert Played(text).run(cells.quote([])) == []


CODES = [
    cells.find_papers(["Kalvot"], 9, quiet=True),
    cells.ask_children("Quote what papers say in a prompt.", ["p1"], 8),
    cells.ask_children("Quote.", None, 2),
    cells.look(["Kalvot"], 9, quiet=True),
    cells.find_sentences("Kalvot"),
]


@pytest.mark.parametrize("code", CODES)
def test_a_misspelt_variable_fails_before_any_sub_call(code: str) -> None:
    played = Played(PAPERS)
    wrong = cells.misspelt(code)
    assert wrong is not None
    with pytest.raises(NameError):
        played.run(wrong)
    assert played.asked == []


def test_code_without_variables_cannot_be_misspelt() -> None:
    assert cells.misspelt("FINAL([])") is None
