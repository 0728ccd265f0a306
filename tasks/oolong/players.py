"""Models that the benchmark asks: the scripted expert, an endpoint, a stored model.

All play on an environment server of their own. It allows enough sub-calls to read the longest
context once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agent.policies.base import Policy
from agent.policies.endpoint import EndpointPolicy, Usage
from env.settings import rules
from tasks import asking, config
from tasks.errors import as_stage_error
from tasks.oolong.contexts import CHARS_PER_TOKEN
from tasks.oolong.expert import expert
from tasks.oolong.questions import DOCUMENT, problems
from tasks.params import Params

EXPERT = "expert"
"""Name of the scripted expert."""
_FRAMES, _CHILDREN = 512, 128
"""Least frames of an episode, and sub-calls of one call."""
_IDLE_S = 7 * 86_400.0
"""Seconds that an episode may wait for its model."""
_ROOM = 20_000
"""Characters beyond the longest context that a document may have."""


@dataclass(frozen=True)
class OolongPlayer:
    """A model that answers, and the settings of its server."""

    name: str
    policy: Policy
    params: Params
    sessions: int
    """Questions in flight."""

    @property
    def file_name(self) -> str:
        """Name for its results, without a suffix."""
        return re.sub(r"[^A-Za-z0-9.-]+", "-", self.name).strip("-.") or "model"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that decide its answers."""
        own = self.params.evaluate_model
        return {
            "model": self.name,
            "serving": self.params.serving.model_dump(),
            "sampling": own.sampling,
            "template_kwargs": dict(own.template_kwargs),
            "rules": rules(self.params.env, self.params.rewards),
        }

    @property
    def endpoint(self) -> EndpointPolicy | None:
        """The policy, if it is an endpoint."""
        return self.policy if isinstance(self.policy, EndpointPolicy) else None

    @property
    def usage(self) -> Usage:
        """Requests and tokens of an endpoint so far; zeros for others."""
        return self.endpoint.usage if self.endpoint else Usage()


@contextmanager
def opened(
    model: str, base_url: str | None, sets: Sequence[str], lengths: Sequence[int]
) -> Iterator[OolongPlayer]:
    """The model that the options name.

    Raises:
        ConfigError: a setting is wrong.
        StageError: the model cannot be loaded, cannot read English, or its endpoint refuses.
    """
    with as_stage_error():
        if base_url is not None:
            params = spacious(config.resolve(asking.PROFILE, sets), lengths)
            own = params.evaluate_model
            policy = EndpointPolicy(
                base_url,
                model,
                params.serving,
                sampling=own.sampling,
                template_kwargs=own.template_kwargs,
                concurrency=own.concurrency,
                timeout_s=own.timeout_s,
            )
            try:
                policy.check()
                sessions = min(own.concurrency, params.env.max_sessions)
                yield OolongPlayer(model, policy, params, sessions)
            finally:
                policy.close()
        elif model == EXPERT:
            params = spacious(config.resolve(asking.PROFILE, sets), lengths)
            children = params.env.limits.max_children
            yield OolongPlayer(EXPERT, expert(children), params, 4)
        else:
            stored = asking.stored(model)
            first = next(problems(0, min(lengths), 1, labels=False))
            asking.require_readable(stored, {DOCUMENT: first.context})
            assert stored.folder is not None
            from tasks import evaluate

            params = spacious(stored.params, lengths)
            sessions = min(params.serving.batch_frames, params.env.max_sessions)
            loaded = evaluate.load_policy(stored.folder, params.serving)
            yield OolongPlayer(stored.name, loaded, params, sessions)


def spacious(params: Params, lengths: Sequence[int]) -> Params:
    """Settings whose episodes can read a context of the greatest length once, in parts."""
    limits = params.env.limits
    grown = limits.model_copy(
        update={
            "max_frames": max(limits.max_frames, _FRAMES),
            "max_children": max(limits.max_children, _CHILDREN),
        }
    )
    most = max(lengths) * CHARS_PER_TOKEN + _ROOM
    env = params.env.model_copy(
        update={"limits": grown, "document_chars": most, "idle_timeout_s": _IDLE_S}
    )
    return params.model_copy(update={"env": env})
