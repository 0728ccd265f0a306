"""Serving of questions with their own documents, and models behind an endpoint.

The registered model (`mlflow/recursive_model.py`) and `tasks/asking.py` share this module.
`agent/rollouts/own_documents.py` plays the episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agent.policies.base import Policy
from agent.rollouts import own_documents
from agent.rollouts.own_documents import Answer, Question
from agent.rollouts.trajectory import Trajectory
from tasks.config.params import Params

if TYPE_CHECKING:
    from agent.policies.endpoint import EndpointPolicy
    from agent.settings import GenerationSettings


def endpoint(
    params: Params, base_url: str, model: str, generation: GenerationSettings, **limits: Any
) -> EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint, asked as `evaluate_model` says.

    Args:
        params: settings in force.
        base_url: address of the endpoint.
        model: name of the model at the endpoint.
        generation: decoding.
        limits: further arguments of the policy.

    Raises:
        PolicyError: `base_url` is not an address.
    """
    from agent.policies.endpoint import EndpointPolicy

    settings = params.evaluate_model
    return EndpointPolicy(
        base_url,
        model,
        generation,
        sampling=settings.sampling,
        template_kwargs=settings.template_kwargs,
        concurrency=settings.concurrency,
        **limits,
    )


def for_documents(params: Params) -> Params:
    """Settings of a server that plays on documents of the request.

    The server generates few problems, because it needs them only to start.
    """
    env = params.env.model_copy(update={"allow_documents": True})
    collections = dict.fromkeys(params.prepare.synthetic.collections, 0) | {"test": 1}
    synthetic = params.prepare.synthetic.model_copy(update={"collections": collections})
    prepare = params.prepare.model_copy(update={"synthetic": synthetic})
    return params.model_copy(update={"env": env, "prepare": prepare})


def play(
    policy: Policy,
    url: str,
    questions: Sequence[Question],
    params: Params,
    on_turn: Callable[[int], object] | None = None,
) -> list[tuple[Answer, Trajectory]]:
    """Answers with their episodes, played with the paper ids, sizes and limits of training.

    Raises:
        EpisodeError: the environment cannot play.
    """
    return own_documents.play_questions(
        policy,
        url,
        questions,
        params.rewards,
        sessions=min(params.env.max_sessions, params.serving.batch_frames),
        numbered=params.prepare.source == "synthetic",
        on_turn=on_turn,
    )
