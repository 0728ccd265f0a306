"""Checks of a running environment, over HTTP and the wire: health, settings, problems, an episode.

`env/variables.py` defines the tokens of a server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from env import variables
from env.settings import rules
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError

_SAMPLE = 3
"""Number of problems per file whose questions are compared."""


def get(url: str, timeout_s: float) -> httpx.Response:
    """Successful response; redirects are not followed, so that no other host gets the token.

    Raises:
        OSError: the request failed, or the status is an error.
    """
    try:
        answer = httpx.get(url, timeout=timeout_s, headers=variables.headers(url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(str(error) or type(error).__name__) from None
    if not answer.is_success:
        raise OSError(f"status {answer.status_code}")
    return answer


def healthy(url: str, timeout_s: float) -> bool:
    """Whether the server reports that it is healthy."""
    try:
        return "healthy" in get(f"{url}/health", timeout_s).text
    except OSError:
        return False


def metadata(url: str) -> dict[str, Any]:
    """The server's metadata.

    Raises:
        ConfigError: it uses another version of the wire.
        StageError: it does not send metadata.
    """
    from env.client import check_wire
    from env.errors import RefusedError

    try:
        about = dict(get(f"{url}/metadata", timeout_s=30.0).json())
        check_wire(url, about)
    except (OSError, ValueError) as error:
        raise StageError(f"{url}/metadata failed ({error}). See its log.") from None
    except RefusedError as error:
        raise ConfigError(str(error)) from None
    return about


def smoke_test(url: str) -> float:
    """Play one episode with an empty answer; return its seconds.

    Raises:
        StageError: the server cannot play an episode.
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
        raise StageError(
            f"the smoke test at {url} failed ({error}). See the server's log."
        ) from error
    if not first.frames or not last.done or last.void is not None:
        raise StageError(
            f"the smoke test at {url} did not end its episode "
            f"({last.void or 'the episode is not done'}). See the server's log."
        )
    return time.monotonic() - started


def check_same(params: Params, url: str, about: dict[str, Any]) -> None:
    """Check that the server uses these settings, since results depend on them.

    Raises:
        ConfigError: sandbox, prompts, search, limits or rewards differ; each difference is named.
    """
    here, there = rules(params.env, params.rewards), about["rules"]
    other = [f"{key} is {there.get(key)!r} there" for key in here if there.get(key) != here[key]]
    if other:
        raise ConfigError(
            f"{url} serves other settings: {', '.join(other)}. Start it with these "
            f"settings, or unset {variables.URL} to let the stage start a local server."
        )


def check_problems(url: str, data: Path) -> None:
    """Check that the server has this machine's problems: others have the wrong gold.

    Args:
        url: address of the server.
        data: folder with this machine's problems; without any, nothing is checked.

    Raises:
        ConfigError: a sampled problem is missing there, or has another question.
        StageError: the connection is lost.
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
                texts = [message.content for frame in frames for message in frame.messages]
            except RefusedError:
                texts = []
            except EpisodeError as error:
                raise StageError(f"{url} cannot play ({error}). See the server's log.") from error
            if not any(row["question"] in text for text in texts):
                raise ConfigError(
                    f"{url} does not serve the problems of {data} "
                    f"({row['problem_id']!r} is missing or differs). Deploy it again with these "
                    "settings, or run `rlm prepare` with the server's."
                )
