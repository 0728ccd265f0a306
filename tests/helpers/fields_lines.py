"""Lines without training that only tests of the world `fields` play.

`oracle` and `lexicon_in_code` know what no paper says, `boosted` the gold of training problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agent.policies import baselines
from agent.policies.baselines import Line, _answer, every_sentence
from env.problems.fields import BENCHMARK, field_of, read_question, sentences_with
from env.problems.lexicon import FIELDS
from env.problems.names import FACTS
from env.problems.schema import Problem
from env.problems.settings import SyntheticSettings, fields_level
from env.problems.synthetic import generate


def problems(
    split: str, sizes: Sequence[int], collections: int, questions: int, seed: int
) -> list[Problem]:
    """Problems of one split, with a level `papers_N` for each size."""
    settings = SyntheticSettings.model_validate(
        {
            "world": "fields",
            "collections": {split: collections},
            "questions_per_collection": questions,
            "levels": {f"papers_{size}": fields_level(size) for size in sizes},
            "seed": seed,
        }
    )
    return generate(settings)


def lines(training: Sequence[Problem], size: int) -> dict[str, baselines.Line]:
    """Every line by its name in the table.

    Args:
        training: problems whose gold the fitted lines know.
        size: names of the lexicon.
    """
    return {
        "keyword search, eight sentences": baselines.keyword_search,
        "every sentence of the method": baselines.every_sentence,
        "search for method and field": baselines.method_and_field,
        "majority field": majority_field(training),
        "gradient boosting": boosted(training),
        "lexicon in code": lexicon_in_code(size),
        "oracle": oracle,
    }


def oracle(problem: Problem) -> Any:
    """The gold."""
    return _answer([fact.spans[0] for fact in problem.evidence])


def lexicon_in_code(size: int) -> Line:
    """A program that holds the lexicon."""

    def line(problem: Problem) -> Any:
        method, field = read_question(problem.question)
        hits = sentences_with(method, problem.papers)
        return _answer([span for span in hits if field_of(span.text, size) == field])

    return line


def majority_field(training: Sequence[Problem]) -> Line:
    """A reader that takes each benchmark for one of the field most asked for in training."""
    asked = Counter(read_question(problem.question)[1] for problem in training)
    likeliest = asked.most_common(1)[0][0]

    def line(problem: Problem) -> Any:
        return every_sentence(problem) if read_question(problem.question)[1] == likeliest else []

    return line


def surface(problem: Problem) -> np.ndarray:
    """Features of the method's sentences [sentences, features] without the benchmarks' letters.

    They are wording, score, lengths and places of sentence and paper. The rest are the number of
    sentences with the same benchmark, and field and length of the question.
    """
    method, field = read_question(problem.question)
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
                score % 10,
                len(span.text),
                every[benchmark],
                text.index(span.text),
                text.index(span.text) / len(text),
                len(text),
                number,
                number / len(hits),
                number % 3,
                list(lines).index(span.paper_id),
                len(lines),
                FIELDS.index(field),
                len(problem.question),
            ]
        )
    return np.array(rows, dtype=float)


def _words(line: str) -> list[str]:
    return line.replace(",", "").replace(".", "").split()


def boosted(training: Sequence[Problem], seed: int = 0) -> Line:
    """Gradient boosting on `surface`, with the threshold that is best in training.

    Needs scikit-learn, which MLflow brings along.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    features = [surface(problem) for problem in training]
    golds = [_gold(problem) for problem in training]
    model = HistGradientBoostingClassifier(random_state=seed)
    model.fit(np.concatenate(features), np.concatenate(golds))
    every = model.predict_proba(np.concatenate(features))[:, 1]
    scores = np.split(every, np.cumsum([len(one) for one in features])[:-1])

    def mean_f1(least: float) -> float:
        found = ((score >= least, gold) for score, gold in zip(scores, golds, strict=True))
        return fmean(2 * (one & gold).sum() / (one.sum() + gold.sum()) for one, gold in found)

    least = max(np.quantile(every, np.linspace(0, 0.99, 34)), key=mean_f1)

    def line(problem: Problem) -> Any:
        hits = sentences_with(read_question(problem.question)[0], problem.papers)
        likely = model.predict_proba(surface(problem))[:, 1]
        return _answer([span for span, p in zip(hits, likely, strict=True) if p >= least])

    return line


def _gold(problem: Problem) -> np.ndarray:
    """Whether each of the method's sentences is gold."""
    gold = {fact.spans[0] for fact in problem.evidence}
    hits = sentences_with(read_question(problem.question)[0], problem.papers)
    return np.array([span in gold for span in hits])
