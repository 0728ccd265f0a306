"""The Hub for one account: the real client, with time limits, retries and failures in words.

The token comes from `HF_TOKEN` or the stored login and leaves only in requests to the Hub: no
message holds it. Neighbours: `space.py` runs Spaces with it; data sets are read elsewhere, in
`env/problems/hub.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from env.problems.hub import chain, line, outage
from tasks.config import SpaceSettings
from tasks.errors import ConfigError, PipelineError, StageError

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

_WAIT_S = 1.0
"""Before the second try; doubles from try to try."""
_SECRET_CHARS = 8
_KEPT = (".gitattributes",)
"""The Hub's own file in each repository."""
_MARKS = {"space": "env/server/app.py", "dataset": ".rlm-problems"}
"""A repository with this file is one of ours: what left the folder may be deleted there."""
_MARK_OF_DATA = b"Each deployment replaces the Parquet files that are here.\n"
"""What a data set's says; a Space's is part of its tree."""


class Hub:
    """Asks the Hub; each failure is one clear message.

    Args:
        settings: time limits and tries.

    Raises:
        ConfigError: there is no token.
    """

    def __init__(self, settings: SpaceSettings) -> None:
        from huggingface_hub import HfApi, get_token

        self.endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        token = get_token()
        if token is None:
            raise ConfigError(
                f"deploy: no token for {self.endpoint}; set HF_TOKEN to one with write access, or "
                "log in with `hf auth login`"
            )
        self.token = token
        self.api = HfApi(endpoint=self.endpoint, token=token)
        self._settings = settings
        self._secrets = {token}
        self._owner: str | None = None

    def ask(self, doing: str, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What a method of the client answers; tried again while the Hub is out of order.

        Args:
            doing: the message's "cannot ...".
            call: the method, or a function that may be repeated as a whole.
            arguments: its arguments.
            named: the same.

        Raises:
            ConfigError: the token or the name is wrong.
            StageError: the Hub did not answer, or refused.
        """
        from huggingface_hub import get_session
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

        def limited() -> T:
            # The client's own limit is none at all; a new session forgets it.
            get_session().timeout = self._settings.timeout_s
            return call(*arguments, **named)

        tries = Retrying(
            stop=stop_after_attempt(self._settings.attempts),
            wait=wait_exponential(multiplier=_WAIT_S),
            retry=retry_if_exception(_passes),
            reraise=True,
        )
        try:
            return tries(limited)
        except PipelineError:
            raise
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise self._in_words(doing, error) from None

    def full_name(self, name: str) -> str:
        """OWNER/NAME; the owner of a bare name is whose token this is."""
        # Asked for full names as well: a wrong token is told before anything is built.
        if self._owner is None:
            self._owner = str(self.ask("ask whose token this is", self.api.whoami)["name"])
        return name if "/" in name else f"{self._owner}/{name}"

    def hide(self, secret: str) -> None:
        """Have a value blotted out of every message from now on, unless it is a short word."""
        if len(secret) >= _SECRET_CHARS:
            self._secrets.add(secret)

    def clean(self, text: str) -> str:
        """The text without secrets: a log of a crash may hold them."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def push(self, repo: str, kind: str, folder: Path) -> str:
        """Make a repository hold the folder's files and no older ones, by one commit or none.

        Args:
            repo: OWNER/NAME.
            kind: `space` or `dataset`.
            folder: what it is to hold.

        Returns:
            The commit that holds them.
        """
        doing = f"push {folder} to the {kind} {repo}"
        return self.ask(doing, self._commit, repo, kind, folder)

    def holds(self, repo: str, kind: str, folder: Path) -> bool:
        """Whether the repository holds exactly the folder's files."""
        return not self.ask(f"read the {kind} {repo}", self._difference, repo, kind, folder)[1]

    def _commit(self, repo: str, kind: str, folder: Path) -> str:
        head, operations = self._difference(repo, kind, folder)
        if not operations:
            return head
        # One commit on what was compared: `upload_folder` may make several.
        done = self.api.create_commit(
            repo,
            operations,
            commit_message="Deploy the environment" if kind == "space" else "Put the problems",
            repo_type=kind,
            parent_commit=head,
        )
        return str(done.oid)

    def _difference(
        self, repo: str, kind: str, folder: Path
    ) -> tuple[str, list[CommitOperationAdd | CommitOperationDelete]]:
        """The newest commit, and what is missing in it or too much.

        Raises:
            ConfigError: it holds files that no deployment put there.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        info = self.api.repo_info(repo, repo_type=kind, files_metadata=True)
        there = {one.rfilename: one for one in getattr(info, "siblings", None) or []}
        here: dict[str, Path | bytes] = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        gone = foreign = [name for name in there if name not in here and name not in _KEPT]
        if kind == "dataset":
            gone = [name for name in gone if name.endswith(".parquet")]
            foreign = [name for name in there if name not in _KEPT]  # train.parquet is any data's
            here[_MARKS[kind]] = _MARK_OF_DATA
        if foreign and _MARKS[kind] not in there:
            setting = "deploy.space.name" if kind == "space" else "deploy.space.dataset"
            raise ConfigError(
                f"deploy: the {kind} {repo} holds something else ({', '.join(foreign[:3])}); name "
                f"another with {setting}, or empty it"
            )
        return str(info.sha), [
            *(CommitOperationDelete(path_in_repo=name, is_folder=False) for name in gone),
            *(
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                for name, content in here.items()
                if name not in there or not _same(there[name], content)
            ),
        ]

    def _in_words(self, doing: str, error: Exception) -> PipelineError:
        where = f"deploy: cannot {doing}: the Hub at {self.endpoint}"
        why = next(filter(None, map(outage, chain(error))), None)
        if why is not None:
            return StageError(
                f"{where} does not answer ({why}, {self._settings.attempts} tries of "
                f"{self._settings.timeout_s:g} s); check the network and https://status.huggingface.co,"
                " then run again: nothing is half done"
            )
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = self.clean(line(error))
        if status in _REMEDIES:
            kind, what, remedy = _REMEDIES[status]
            return kind(f"{where} {what} ({status}); {remedy}")
        return StageError(f"{where} refuses: {said}")


_REMEDIES: Mapping[Any, tuple[type[PipelineError], str, str]] = {
    401: (
        ConfigError,
        "does not know the token",
        "it may have expired: set HF_TOKEN to a valid one, or log in with `hf auth login`",
    ),
    402: (
        ConfigError,
        "asks for a payment",
        "choose deploy.space.hardware: cpu-basic, or a plan that includes what was asked for",
    ),
    403: (
        ConfigError,
        "does not let this token do it",
        "use a token with write access to that owner, or another deploy.space.name",
    ),
    404: (
        ConfigError,
        "knows no such repository",
        "check deploy.space.name and that the token may read it",
    ),
    409: (
        StageError,
        "says that something else changes it at the same time",
        "wait for that, then run again: nothing is half done",
    ),
    412: (
        StageError,
        "says that somebody else changed it meanwhile",
        "look at its last commit, then run again: nothing is half done",
    ),
}


def _passes(error: BaseException) -> bool:
    """Whether a later try may help."""
    return not isinstance(error, PipelineError) and any(map(outage, chain(error)))


def _same(there: RepoSibling, here: Path | bytes) -> bool:
    from huggingface_hub.utils.sha import git_hash

    content = here if isinstance(here, bytes) else here.read_bytes()
    if there.lfs is not None:
        return bool(there.lfs.sha256 == hashlib.sha256(content).hexdigest())
    return bool(there.blob_id == git_hash(content))
