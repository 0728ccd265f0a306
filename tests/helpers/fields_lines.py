"""What a reader of the world `fields` could see without the lexicon."""

from __future__ import annotations

from collections import Counter

import numpy as np

from env.problems.fields import BENCHMARK, read_question, sentences_with
from env.problems.names import FACTS
from env.problems.schema import Problem


def surface(problem: Problem) -> np.ndarray:
    """Features of the method's sentences [sentences, features] without the benchmarks' letters.

    They are wording, score, lengths and places of sentence and paper, and the number of sentences
    with the same benchmark.
    """
    method, _ = read_question(problem.question)
    hits = sentences_with(method, problem.papers)
    lines = {paper.paper_id: paper.text.split("\n") for paper in problem.papers}
    every = Counter(word for text in lines.values() for line in text for word in _words(line))
    rows = []
    for number, span in enumerate(hits):
        words = _words(span.text)
        score = next(int(word) for word in words if word.isdigit())
        [benchmark] = BENCHMARK.findall(span.text)
        wording = span.text.replace(method, "{x}").replace(benchmark, "{y}")
        wording = wording.replace(str(score), "{n}")
        text = lines[span.paper_id]
        rows.append(
            [
                FACTS.index(wording) if wording in FACTS else -1,
                score,
                len(span.text),
                every[benchmark],
                text.index(span.text),
                text.index(span.text) / len(text),
                len(text),
                number,
                number % 3,
                list(lines).index(span.paper_id),
            ]
        )
    return np.array(rows, dtype=float)


def _words(line: str) -> list[str]:
    return line.replace(",", "").replace(".", "").split()
