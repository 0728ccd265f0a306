"""The queue of questions: order, limit, clients that leave, and who is asked."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from assistant import asking, question_queue
from assistant.asking import AskedModel
from assistant.question_queue import OpenQuestion, QuestionQueue, QueueFullError
from tasks.config.params import Params
from tasks.errors import StageError

MODEL = AskedModel("m", cast(Any, None))


class HeldAsk:
    """Plays one question at a time, until it is released; all of them fail."""

    def __init__(self) -> None:
        self.played: list[str] = []
        self.release = threading.Event()

    def __call__(self, text: str, documents: Any, *, watch: Any, stop: threading.Event) -> Any:
        self.played.append(text)
        watch({"event": "frame", "question": text})
        while not (stop.is_set() or self.release.is_set()):
            threading.Event().wait(0.005)
        raise StageError("lost")


def queued(ask: HeldAsk) -> QuestionQueue:
    return QuestionQueue(ask, MODEL)


async def told(question: OpenQuestion) -> list[Any]:
    return [event async for event in question.events(every_s=60)]


async def until_played(ask: HeldAsk, count: int) -> None:
    async with asyncio.timeout(10):
        while len(ask.played) < count:
            await asyncio.sleep(0.005)


def test_questions_are_played_in_the_order_of_arrival_and_one_that_left_is_not() -> None:
    ask = HeldAsk()

    async def work() -> list[list[Any]]:
        queue = queued(ask)
        questions = [queue.take(str(number), {}) for number in range(5)]
        await until_played(ask, 1)
        questions[2].close()  # waits
        questions[0].close()  # is played
        ask.release.set()
        answers = [await told(questions[number]) for number in (1, 3, 4)]
        await asyncio.sleep(0.05)
        assert not queue.open
        return answers

    answers = asyncio.run(work())
    assert ask.played == ["0", "1", "3", "4"]
    assert [[event["event"] for event in answer] for answer in answers] == [["frame", "error"]] * 3
    assert answers[0][-1]["message"] == "lost"


def test_too_many_questions_are_refused_until_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_queue, "WAITING", 2)
    ask = HeldAsk()

    async def work() -> None:
        queue = queued(ask)
        questions = [queue.take(str(number), {}) for number in range(3)]
        with pytest.raises(QueueFullError, match="3 questions wait or are played"):
            queue.take("3", {})
        questions[1].close()  # before its task began
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        questions.append(queue.take("3", {}))
        ask.release.set()
        for number in (0, 2, 3):
            assert (await told(questions[number]))[-1]["message"] == "lost"

    asyncio.run(work())
    assert ask.played == ["0", "2", "3"]


def test_a_model_that_ranks_by_meaning_is_not_asked_where_nothing_is_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "by_meaning", lambda documents, question, most: [])
    params = Params(env={"rank": "minilm"})
    asked = asking.Ask(object(), "http://nowhere.invalid", params)("Why?", {"a": "A text."})
    assert (asking.verdict(asked.answer)[:7], asked.episode) == ("Nothing", None)
