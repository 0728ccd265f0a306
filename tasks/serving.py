"""A model that answers questions about documents that come with the question.

What the registered model (`mlflow/recursive_model.py`) and `flows/ask.py` share: the settings
that serving changes, and an environment's server of one's own. The episodes are played by
`agent/answers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent import answers
from agent.answers import Answer, Question
from agent.policy import Policy
from tasks.config import DeploySettings, Params
from tasks.deploy import local_server


@contextmanager
def own_server(params: Params, data: Path | None = None) -> Iterator[str]:
    """A local server on a free port, beside whichever environment the settings deploy.

    Raises:
        StageError: it does not start.
    """
    deploy = DeploySettings(wait_s=params.deploy.wait_s)
    with local_server(params.model_copy(update={"deploy": deploy}), data) as url:
        yield url


def for_documents(params: Params) -> Params:
    """The settings of a server that plays on documents of the request.

    It needs problems of its own only to start, so it makes few.
    """
    env = params.env.model_copy(update={"allow_documents": True})
    groups = dict.fromkeys(params.prepare.synthetic.groups, 0) | {"test": 1}
    synthetic = params.prepare.synthetic.model_copy(update={"groups": groups})
    prepare = params.prepare.model_copy(update={"synthetic": synthetic})
    return params.model_copy(update={"env": env, "prepare": prepare})


def answer(policy: Policy, url: str, questions: Sequence[Question], params: Params) -> list[Answer]:
    """Play the questions as the model was trained: with its ids of papers, sizes and limits.

    Raises:
        EpisodeError: the environment plays nothing.
    """
    return answers.answer(
        policy,
        url,
        questions,
        params.rewards,
        sessions=min(params.env.max_sessions, params.serving.batch_frames),
        numbered=params.prepare.source == "synthetic",
    )
