"""What a running environment says of itself, and whether it plays: asked over HTTP and the wire.

Neighbours: `deploy.py` and the targets' modules ask; `env/access.py` says what opens a server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from env import access
from env.settings import rules
from tasks.config import Params
from tasks.errors import ConfigError, StageError

_SAMPLE = 3
"""Problems whose questions are compared."""


def get(url: str, timeout_s: float) -> httpx.Response:
    """A good answer; redirects are not followed, so that a token stays where it belongs.

    Raises:
        OSError: no answer, or a bad one; the message says which.
    """
    try:
        answer = httpx.get(url, timeout=timeout_s, headers=access.headers(url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(str(error) or type(error).__name__) from None
    if not answer.is_success:
        raise OSError(f"status {answer.status_code}")
    return answer


def healthy(url: str, timeout_s: float) -> bool:
    """Whether the server says that it is."""
    try:
        return "healthy" in get(f"{url}/health", timeout_s).text
    except OSError:
        return False


def metadata(url: str) -> dict[str, Any]:
    """What the server says of itself.

    Raises:
        StageError: it does not say it.
    """
    try:
        about = get(f"{url}/metadata", timeout_s=30.0).json()
    except (OSError, ValueError) as error:
        raise StageError(f"deploy: {url}/metadata does not answer: {error}") from None
    return dict(about)


def smoke_test(url: str) -> float:
    """Play one episode that answers nothing; seconds it took.

    Raises:
        StageError: no episode can be played there.
    """
    from env.client import Sessions
    from env.errors import EpisodeError, RefusedError
    from env.models import RLMAction

    started = time.monotonic()
    try:
        with Sessions(url, 1, message_timeout_s=60.0) as sessions:
            first = sessions.reset(0, seed=0).result()
            last = sessions.step(0, RLMAction(text="```repl\nFINAL([])\n```")).result()
    except (EpisodeError, RefusedError) as error:
        raise StageError(f"deploy: the smoke test at {url} failed: {error}") from error
    if not first.frames or not last.done or last.void is not None:
        raise StageError(
            f"deploy: the smoke test at {url} did not end as it must: "
            f"{last.void or 'the episode is not done'}; see the server's log"
        )
    return time.monotonic() - started


def check_same(params: Params, url: str, about: dict[str, Any]) -> None:
    """A server that plays by other rules than ours must not be measured as if by ours.

    Raises:
        ConfigError: sandbox, prompts, search, limits or rewards differ; each difference is named.
    """
    here = rules(params.env, params.rewards)
    there = about.get("rules")
    if not isinstance(there, dict):
        raise ConfigError(
            f"deploy: {url} does not say by which rules it plays, so it runs another version of "
            "this environment; start it with this one"
        )
    other = [f"{key} is {there.get(key)!r} there" for key in here if there.get(key) != here[key]]
    if other:
        raise ConfigError(
            f"deploy: {url} serves other settings: {', '.join(other)}; start it with these "
            f"settings, or unset {access.URL} to let the stage start a local one"
        )


def check_problems(url: str, data: Path) -> None:
    """A server with other problems under the same ids would be measured against the wrong gold.

    Args:
        url: of the server.
        data: folder with this machine's problems; nothing is checked where it holds none.

    Raises:
        ConfigError: it lacks one of a few problems, or asks another question under its id.
        StageError: the connection to it is lost.
    """
    import pyarrow.parquet as pq

    from env.client import Sessions
    from env.errors import EpisodeError, RefusedError

    rows = [
        row
        for path in sorted(data.glob("*.parquet"))
        for row in pq.read_table(path, columns=["problem_id", "question"]).to_pylist()[:_SAMPLE]
    ]
    with Sessions(url, 1, message_timeout_s=60.0) as sessions:
        for row in rows:
            try:
                frames = sessions.reset(0, problem_id=row["problem_id"]).result().frames
                said = [message.content for frame in frames for message in frame.messages]
            except RefusedError:
                said = []
            except EpisodeError as error:
                raise StageError(f"deploy: {url} does not play: {error}") from error
            if not any(row["question"] in text for text in said):
                raise ConfigError(
                    f"deploy: {url} does not serve the problems of {data}: "
                    f"{row['problem_id']!r} is missing or another one there; deploy it again with "
                    "these settings, or run `python -m flows.pipeline prepare` with its own"
                )
