"""The OpenEnv environment: adapts one session's messages to a tree, and its end to a reward.

A refusal has a reason and changes no state. After an internal error, a client receives a fixed
sentence, because the text of an exception may contain gold. Neighbours: `tree.py` plays,
`service.py` holds the objects that sessions share, `rewards.rubrics` scores.
"""

from __future__ import annotations

import json
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from env.errors import ProblemError, RefusedError, SandboxError
from env.light_openenv import Environment, types
from env.models import (
    WIRE_VERSION,
    AnswerMetrics,
    FrameTurn,
    JSONValue,
    ProblemCard,
    RLMAction,
    RLMObservation,
    RLMState,
)
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.prompts import cut
from env.server.capacity import capacity
from env.server.door.guard import IDLE, INTERNAL, LEAVES
from env.server.scoring import episode_facts, rounded
from env.server.service import Service
from env.server.tree import Tree
from env.server.tree.frame import held_bytes
from env.settings import DOCUMENT_CHARS, PROMPT_CHARS, EnvSettings, rules
from rewards.rubrics import EpisodeRubric

logger = logging.getLogger(__name__)

NAME = "rlm"
DESCRIPTION = (
    "Questions about collections of papers, answered by a tree of agents that write Python in "
    "a REPL and call themselves on parts of the collection."
)
VERSION = "0.2.0"

DEFAULT_SPLIT = "train"

NOT_RESET = "no episode is running: reset first"
SESSION_ENDED = "this session was closed: connect again, then reset"
SANDBOX_FAILED = "the sandbox failed"
_ID_CHARS = 255
"""Limit of an episode's id, the same as in OpenEnv's HTTP route."""
_ECHOED_CHARS = 100
"""Limit of what a refusal repeats of a client's own text."""
_ANSWER_BYTES = 128 << 10
"""Limit of an answer as JSON: those of 256 sessions fit into what clients may leave unread."""
_ANSWER_VALUES = 10_000
_CARD = ("problem_id", "collection_id", "difficulty", "split")
"""Fields of a problem's card that come from its row."""


class RLMMetadata(types.EnvironmentMetadata):
    """OpenEnv's metadata, and the facts that a run records about its environment."""

    wire_version: int
    sandbox_layers: list[str]
    """Layers of the boundary that are enforced on this machine."""
    sandbox_clock: Literal["schedstat", "cpu"]
    """Source of a cell's own time: wall time without waiting, or CPU time alone."""
    prompt_style: str
    rules: dict[str, Any]
    """Settings that decide the course and the reward of an episode, by dotted name."""
    problems: int
    """Number of problems that a client without the owner's key may play."""
    difficulties: list[str]
    """Difficulties of the default split; empty where a client without the key may not know them."""
    problem_source: str
    splits: list[str] | None
    """Splits that a client without the owner's key may play, with rounded figures; None: all."""
    max_sessions: int
    """Episodes at the same time; `max_sessions_reason` is the limit that decides it."""
    max_sessions_reason: str
    documents: bool
    """Whether `reset(question=..., papers=...)` is allowed."""


class RLMEnvironment(Environment[RLMAction, RLMObservation, RLMState]):
    """One session: at most one tree at a time.

    Args:
        service: returns the shared settings, problems and sandbox.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Callable[[], Service]) -> None:
        super().__init__()
        # Stateless requests construct one, too: everything costly waits for a reset.
        self._service = service
        self.rubric: EpisodeRubric | None = None
        self._tree: Tree | None = None
        self._problem: Problem | None = None
        self._card: ProblemCard | None = None
        self._exact = True
        """Whether the client of this episode reads exact figures."""
        self._episode_id: str | None = None
        self._steps = 0
        self._closed = False

    # --- OpenEnv's interface

    def reset(
        self,
        /,
        seed: int | None = None,
        episode_id: str | None = None,
        problem_id: str | None = None,
        split: str | None = None,
        difficulty: str | None = None,
        question: str | None = None,
        papers: JSONValue = None,
        owner_key: str | None = None,
        **unknown: Any,
    ) -> RLMObservation:
        """Start an episode with a named problem, one chosen by the seed, or the client's papers.

        `owner_key` opens every split, with exact figures, where `env.splits` is set.
        """
        try:
            if self._closed:
                return RLMObservation(done=True, refused=SESSION_ENDED)
            if unknown:
                raise RefusedError(
                    "reset takes problem_id, or split, difficulty and seed, or question and papers"
                )
            texts = {"split": split, "difficulty": difficulty, "question": question}
            texts |= {"problem_id": problem_id, "owner_key": owner_key}
            _check_types(seed, episode_id, texts)
            service = self._service()
            env, problems = service.settings.env, service.problems_for(owner_key)
            problem = None
            if question is None and papers is None:
                problem = _choose(problems, seed, problem_id, split, difficulty)
                asked, documents = problem.question, problem.texts
            else:
                asked, documents = _own_papers(env, question, papers)
            shared_as = problem.problem_id if problem else None
            tree = Tree(env, service.host, asked, documents, shared_as)
            fields = {name: getattr(problem, name) if problem else "own" for name in _CARD}
            card = ProblemCard(papers=len(documents), **fields)
        except RefusedError as error:
            return self._refuse(str(error))
        except Exception:
            # The message may contain field names and texts of rows: log it, never send it.
            logger.exception("reset failed")
            return self._refuse(INTERNAL)
        if self._tree is not None:
            self._tree.close()
        self._reset_rubric()
        self._steps = 0
        self._tree, self._problem, self._card = tree, problem, card
        self._exact = problems is service.problems
        self._episode_id = episode_id or str(uuid.uuid4())
        return self._observe()

    def step(
        self, action: RLMAction, timeout_s: float | None = None, **kwargs: Any
    ) -> RLMObservation:
        """Play turns of ready frames."""
        tree = self._tree
        if self._closed:
            return RLMObservation(done=True, void=IDLE)
        if tree is None:
            return self._refuse(NOT_RESET, done=True)
        if tree.done:
            return self._refuse("the episode has ended: reset first", done=True)
        try:
            tree.play(self._turns(tree, action))
        except RefusedError as error:
            return self._refuse(str(error))
        except SandboxError:
            if not self._closed:
                logger.exception("episode %s is void", self._episode_id)
            tree.end_void(IDLE if self._closed else SANDBOX_FAILED)
        except Exception:
            logger.exception("episode %s is void", self._episode_id)
            tree.end_void(INTERNAL)
        self._steps += 1
        return self._observe()

    @property
    def state(self) -> RLMState:
        """The tree, without gold and without texts."""
        tree = self._tree
        if tree is None:
            return RLMState()
        return RLMState(
            episode_id=self._episode_id,
            step_count=self._steps,
            problem=self._shown_card(tree),
            frames=tree.states(),
            counters=tree.counters,
            done=tree.done,
            void=tree.void,
        )

    def get_metadata(self) -> RLMMetadata:
        """Settings, problems and boundary of this server."""
        service = self._service()
        env, problems = service.settings.env, service.problems_for()
        sessions, reason = capacity(env, service.host)
        return RLMMetadata(
            name=NAME,
            description=DESCRIPTION,
            version=VERSION,
            wire_version=WIRE_VERSION,
            sandbox_layers=list(service.host.enforced),
            sandbox_clock="schedstat" if service.host.measures_waiting else "cpu",
            prompt_style=env.prompt_style,
            rules=rules(env, service.settings.rewards),
            problems=len(problems),
            difficulties=list(filter(None, problems.difficulties(DEFAULT_SPLIT))),
            problem_source=problems.source,
            splits=env.splits,
            max_sessions=sessions,
            max_sessions_reason=reason,
            documents=env.allow_documents,
        )

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[None]:
        """Tell the connection which session it has: OpenEnv enters this in the connection's task.

        A client that leaves then ends the step in progress.
        """
        if (leaves := LEAVES.get()) is not None:
            leaves.append(self.abandon)
        yield

    def abandon(self) -> None:
        """End the step in progress soon, because nobody reads its answer; any thread may call."""
        self._closed = True
        if self._tree is not None:
            self._tree.stop()

    def close(self) -> None:
        """End the session's processes; every later call is refused."""
        self._closed = True
        if self._tree is not None:
            self._tree.close()

    # --- step

    @staticmethod
    def _turns(tree: Tree, action: RLMAction) -> list[FrameTurn]:
        if action.text and action.turns:
            raise RefusedError("send text or turns, not both")
        if action.turns:
            return action.turns
        if not action.text:
            raise RefusedError("the action is empty: send text, or turns")
        return [FrameTurn(frame=tree.first_ready(), text=action.text)]

    def _refuse(self, reason: str, done: bool = False) -> RLMObservation:
        # Done if no episode runs: a loop that waits for the end must not wait forever.
        return RLMObservation(refused=reason, done=done)

    def _observe(self) -> RLMObservation:
        tree = self._tree
        assert tree is not None
        scored: dict[str, Any] = {}
        if tree.done and tree.void is None and not self._closed and self._problem is not None:
            try:
                with self._service().scoring.turn(tree.held_bytes + held_bytes(tree.answer)):
                    scored = self._score(tree, self._problem)
                if not self._exact:
                    weights = self._service().settings.rewards.weights
                    scored = rounded(scored, weights.process_quality)
            except Exception:
                logger.exception("episode %s cannot be scored", self._episode_id)
                tree.end_void(INTERNAL)
        observation = RLMObservation(
            frames=tree.views(),
            done=tree.done,
            counters=tree.counters,
            answer=_shown_answer(tree.answer) if tree.done and tree.void is None else None,
            void=tree.void,
            problem=self._shown_card(tree),
            **scored,
        )
        if tree.done:
            tree.forget()
        return observation

    def _shown_card(self, tree: Tree) -> ProblemCard | None:
        """The card. The tier reveals how many papers contain gold, so it comes with the end."""
        if self._card is None or self._problem is None or not tree.done:
            return self._card
        return self._card.model_copy(update={"tier": self._problem.tier})

    def _score(self, tree: Tree, problem: Problem) -> dict[str, Any]:
        settings = self._service().settings.rewards
        facts = episode_facts(tree, problem, settings)
        if self.rubric is None:
            self.rubric = EpisodeRubric(settings)
        reward = self.rubric(None, facts)
        score = self.rubric.score
        assert score is not None
        return {
            "reward": reward,
            "components": score.components,
            "metrics": AnswerMetrics.model_validate(score, from_attributes=True),
        }


def _check_types(seed: JSONValue, episode_id: JSONValue, texts: Mapping[str, JSONValue]) -> None:
    """Raise RefusedError unless the arguments of `reset` have the types of its signature."""
    name = "" if episode_id is None else episode_id
    if not isinstance(name, str) or len(name) > _ID_CHARS or not name.isprintable():
        raise RefusedError(f"episode_id must be a printable text, at most {_ID_CHARS} characters")
    if not isinstance(seed, int | None):
        raise RefusedError("seed must be a whole number")
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise RefusedError(f"{name} must be a string")


def _shown_answer(answer: JSONValue) -> JSONValue:
    """The answer, or the start of its JSON if that is large; the reward counts all of it."""
    text = json.dumps(answer, ensure_ascii=False)
    values = sum(map(text.count, ",[{"))
    if values <= _ANSWER_VALUES and len(text.encode("utf-8", "surrogatepass")) <= _ANSWER_BYTES:
        return answer
    # A character has at most four bytes, and an escape doubles at most.
    return cut(text, _ANSWER_BYTES // 8)


def _choose(
    problems: ProblemStore,
    seed: int | None,
    problem_id: str | None,
    split: str | None,
    difficulty: str | None,
) -> Problem:
    chosen_split = split or DEFAULT_SPLIT
    try:
        if problem_id is not None:
            return problems.get(problem_id)
        chosen = secrets.randbelow(2**31) if seed is None else seed
        return problems.pick(chosen_split, difficulty, chosen)
    except KeyError:
        wanted = [problem_id] if problem_id else [chosen_split, difficulty]
        what = ", ".join(repr(part and part[:_ECHOED_CHARS]) for part in wanted)
        what = f"problem_id {what}" if problem_id else what
        raise RefusedError(f"this server has no problem for {what}") from None
    except ProblemError:
        logger.exception("problem %s", problem_id)
        raise RefusedError("that problem's row does not fit the schema") from None


def _own_papers(
    env: EnvSettings, question: str | None, papers: JSONValue
) -> tuple[str, dict[str, str]]:
    """A client's question and own papers, as {paper_id: text}.

    Raises:
        RefusedError: they are not allowed, too large, or of another shape.
    """
    if not env.allow_documents:
        raise RefusedError("own documents are off on this server (env.allow_documents)")
    if question is None or not question.strip():
        raise RefusedError("own papers need a question")
    if len(question) > PROMPT_CHARS:
        raise RefusedError(f"the question is longer than {PROMPT_CHARS} characters")
    if not isinstance(papers, dict) or not papers:
        raise RefusedError("papers must be a dict {paper_id: text}")
    if not all(isinstance(text, str) and text for text in papers.values()):
        raise RefusedError("every paper must be a text that is not empty")
    if sum(map(len, papers.values())) > DOCUMENT_CHARS:
        raise RefusedError(f"the papers are longer than {DOCUMENT_CHARS} characters in all")
    return question, {str(paper_id): text for paper_id, text in papers.items()}
