"""Answers of one model, in a JSONL file: one line an answer, written as soon as it is there.

A run that was stopped continues with the questions that have no answer. Lost answers are asked
again. The first line holds the settings, so that answers of other settings never mix.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from env.settings import flatten
from tasks.errors import ConfigError, StageError


@dataclass(frozen=True)
class ScoredAnswer:
    """Answer to one problem, and its cost."""

    problem_id: str
    arm: str
    """`tree`: a recursive episode; `plain-N`: one request of at most N tokens; or a baseline."""
    labels: bool
    length: int
    context_id: str
    kind: str
    gold: str
    answer: str
    score: float | None
    """In [0, 1]; None if infrastructure lost the answer."""
    void: str | None = None
    """Reason of the loss."""
    cut: bool = False
    """Whether the prompt holds only the first part of the context."""
    tokens: int = 0
    """Tokens read and written, each counted once, at four bytes a token."""
    sub_calls: int = 0
    seconds: float = 0.0
    requests: int = 0
    """Requests to the endpoint since the answer before; so are the next two."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def cell(self) -> tuple[str, bool, int]:
        """Arm, labels and length."""
        return self.arm, self.labels, self.length

    def instead_of(self, lost: ScoredAnswer) -> ScoredAnswer:
        """This answer with the bill of a lost one, which may hold requests of other questions."""
        return replace(
            self,
            requests=self.requests + lost.requests,
            prompt_tokens=self.prompt_tokens + lost.prompt_tokens,
            completion_tokens=self.completion_tokens + lost.completion_tokens,
        )


class AnswerFile:
    """The answers so far, and the file that takes the next.

    Args:
        path: JSONL file.
        file: the same, open for appending.
        answers: its content by problem and arm; the last answer counts.
    """

    def __init__(
        self, path: Path, file: TextIO, answers: dict[tuple[str, str], ScoredAnswer]
    ) -> None:
        self.path, self._file, self.answers = path, file, answers

    def add(self, answer: ScoredAnswer) -> None:
        """Append an answer; it is on the disk when this returns."""
        self.answers[answer.problem_id, answer.arm] = answer
        self._write(asdict(answer))

    def has(self, problem_id: str, arm: str) -> bool:
        """Whether the problem was answered, and the answer not lost."""
        found = self.answers.get((problem_id, arm))
        return found is not None and found.void is None

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def answer_file(path: Path, settings: Mapping[str, Any]) -> Iterator[AnswerFile]:
    """The file of a model; a half-written last line is removed.

    Args:
        path: JSONL file; created if it does not exist.
        settings: what decides the answers.

    Raises:
        ConfigError: the file holds answers under other settings, or other content.
        StageError: it cannot be written, or another run is writing to it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise StageError(
            f"{path} cannot be written ({error.strerror}). Choose another folder with --out."
        ) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageError(
                f"{path}: another run writes to this file. Wait for its end."
            ) from None
        file.seek(0)
        text = file.read()
        head, answers = parsed(path, text)
        wanted = json.loads(json.dumps(flatten(settings)))
        begun = text[text.rfind("\n") + 1 :]
        if head is None and not json.dumps(wanted).startswith(begun):
            raise ConfigError(
                f"{path} is not a file of this benchmark with these settings. Move the file, or "
                "choose another folder with --out."
            )
        was = head or wanted
        if other := sorted(key for key in {*was, *wanted} if was.get(key) != wanted.get(key)):
            raise ConfigError(
                f"{path} holds answers under other settings: {', '.join(other[:5])}. Repeat the "
                "settings, or choose another folder with --out."
            )
        if begun:
            kept = text.removesuffix(begun)
            os.truncate(path, len(kept.encode("utf-8", "surrogateescape")))
        kept_answers = AnswerFile(path, file, answers)
        if head is None:
            kept_answers._write(wanted)
        yield kept_answers


def parsed(
    path: Path, text: str
) -> tuple[dict[str, Any] | None, dict[tuple[str, str], ScoredAnswer]]:
    """Settings and answers of a file's text; None and nothing of an empty one.

    The last line does not count without its end: a run writes it, or was killed then.

    Raises:
        ConfigError: a line is not an answer.
    """
    answers: dict[tuple[str, str], ScoredAnswer] = {}
    head = None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            row = json.loads(line)
            if number == 1:
                head = dict(row)
            else:
                answer = ScoredAnswer(**row)
                key = answer.problem_id, answer.arm
                answers[key] = answer.instead_of(answers[key]) if key in answers else answer
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}, line {number}: not an answer of this benchmark ({error}). Move the file, "
                "or choose another folder with --out."
            ) from None
    return head, answers
