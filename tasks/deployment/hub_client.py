"""Hub client of one account, with time limits, retries and clear messages.

The token comes from `HF_TOKEN` or the stored login. It is sent only to the Hub and is never part
of a message. `space.py` runs Spaces with this client, and `space_problems.py` puts a data set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from tasks.errors import ConfigError, PipelineError, StageError

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

TIMEOUT_S = 30.0
"""Seconds of a request."""
ATTEMPTS = 4
_WAIT_S = 1.0
"""Seconds before the second try; they double with each try."""
_SECRET_CHARS = 8
_KEPT = (".gitattributes",)
"""File that the Hub itself adds to each repository."""
_MARKS = {"space": "env/server/app.py", "dataset": ".rlm-problems"}
"""File that marks a repository of this project, where old files may be deleted."""
_MARK_OF_DATA = b"Each deployment replaces the Parquet files that are here.\n"
"""Content of a data set's marker; a Space's marker is part of its tree."""


class Hub:
    """Client of the Hub; each failure is one clear message.

    Raises:
        ConfigError: no token is set.
    """

    def __init__(self) -> None:
        from huggingface_hub import HfApi, get_token

        self.endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        token = get_token()
        if token is None:
            raise ConfigError(
                f"no token for {self.endpoint}. Set HF_TOKEN to one with write access, or "
                "log in with `hf auth login`."
            )
        self.token = token
        self.api = HfApi(endpoint=self.endpoint, token=token)
        self._secrets = {token}
        self._owner = ""

    def ask(self, doing: str, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Result of a method of the client, which is repeated while the Hub fails.

        Args:
            doing: the action, for the message "cannot ...".
            call: the method, or a function that may be repeated as a whole.
            arguments: positional arguments of the call.
            named: keyword arguments of the call.

        Raises:
            ConfigError: the token or the name is wrong.
            StageError: the Hub did not answer, or refused.
        """
        from huggingface_hub import get_session

        def limited() -> T:
            # The client has no limit of its own, and each new session loses this one.
            get_session().timeout = TIMEOUT_S
            return call(*arguments, **named)

        tries = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=_WAIT_S),
            retry=retry_if_exception(_passes),
            reraise=True,
        )
        try:
            return tries(limited)
        except PipelineError:
            raise
        # An upload of large files wraps its errors in a RuntimeError.
        except (OSError, RuntimeError, ValueError, httpx.HTTPError) as error:
            raise self._describe(doing, error) from None

    def full_name(self, name: str) -> str:
        """OWNER/NAME; the owner of a bare name is the owner of the token."""
        # Also for full names: a wrong token is reported before anything is built.
        if not self._owner:
            self._owner = str(self.ask("ask whose token this is", self.api.whoami)["name"])
        return name if "/" in name else f"{self._owner}/{name}"

    def hide(self, secret: str) -> None:
        """Mask a value in all later messages, unless it is shorter than 8 characters."""
        if len(secret) >= _SECRET_CHARS:
            self._secrets.add(secret)

    def clean(self, text: str) -> str:
        """The text with secrets masked: the log of a crash may contain them."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def create(self, repo: str, kind: str, *, private: bool, why: str, **options: str) -> Any:
        """Create a repository, unless it exists; returns its description.

        Args:
            repo: OWNER/NAME.
            kind: `space` or `dataset`.
            private: its visibility.
            why: reason for the visibility, which follows "but" in the message.
            options: further arguments of the client.

        Raises:
            ConfigError: its visibility differs.
        """
        common = {"repo_type": kind, "private": private, "exist_ok": True}
        self.ask(f"create the {kind} {repo}", self.api.create_repo, repo, **common, **options)
        info = self.ask(f"read the {kind} {repo}", self.api.repo_info, repo, repo_type=kind)
        if bool(info.private) != private:
            raise ConfigError(
                f"the {kind} {repo} is {'private' if info.private else 'public'}, but {why}. "
                "Change one of them: visibility is never changed silently."
            )
        return info

    def push(self, repo: str, kind: str, folder: Path) -> str:
        """Replace a repository's content by a folder's files in at most one commit.

        Args:
            repo: OWNER/NAME.
            kind: `space` or `dataset`.
            folder: the new content.

        Returns:
            The commit with this content.
        """
        return self.ask(f"push {folder} to the {kind} {repo}", self._commit, repo, kind, folder)

    def holds(self, repo: str, kind: str, folder: Path) -> bool:
        """Whether the repository contains exactly the folder's files."""
        return not self.ask(f"read the {kind} {repo}", self._difference, repo, kind, folder)[1]

    def _commit(self, repo: str, kind: str, folder: Path) -> str:
        head, operations = self._difference(repo, kind, folder)
        if not operations:
            return head
        message = "Deploy the environment" if kind == "space" else "Put the problems"
        # One commit on the compared head: `upload_folder` may make several.
        done = self.api.create_commit(
            repo, operations, commit_message=message, repo_type=kind, parent_commit=head
        )
        return str(done.oid)

    def _difference(
        self, repo: str, kind: str, folder: Path
    ) -> tuple[str, list[CommitOperationAdd | CommitOperationDelete]]:
        """The newest commit, and the operations that turn it into the folder's content.

        Raises:
            ConfigError: the repository contains files that no deployment wrote.
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
            # Any data set may have a train.parquet.
            foreign = [name for name in there if name not in _KEPT]
            here[_MARKS[kind]] = _MARK_OF_DATA
        if foreign and _MARKS[kind] not in there:  # they may be somebody's work
            setting = "name" if kind == "space" else "dataset"
            raise ConfigError(
                f"the {kind} {repo} contains other files ({', '.join(foreign[:3])}). Name "
                f"another with deploy.space.{setting}, or empty it."
            )
        return str(info.sha), [
            *(CommitOperationDelete(path_in_repo=name, is_folder=False) for name in gone),
            *(
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                for name, content in here.items()
                if name not in there or not _same(there[name], content)
            ),
        ]

    def _describe(self, doing: str, error: Exception) -> PipelineError:
        where = f"cannot {doing}: the Hub at {self.endpoint}"
        said = self.clean(" ".join(str(error).split()) or type(error).__name__)
        if _passes(error):
            return StageError(
                f"{where} does not answer ({said}). Check the network and "
                f"https://status.huggingface.co, {_AGAIN}"
            )
        answers = (getattr(cause, "response", None) for cause in _chain(error))
        status = next((answer.status_code for answer in answers if answer is not None), None)
        return (ConfigError if status in _OURS else StageError)(
            f"{where} refuses (status {status}: {said}). Check deploy.space.name "
            f"and that HF_TOKEN, or the login of `hf auth login`, may do this, {_AGAIN}"
        )


_AGAIN = "then run again: nothing is half done."
_OURS = (401, 402, 403, 404)
"""Statuses that only another setting or token can change."""


def _passes(error: BaseException) -> bool:
    """Whether the Hub or the network failed, so that a later try may help."""
    from huggingface_hub.errors import HfHubHTTPError

    for cause in _chain(error):
        if isinstance(cause, httpx.TransportError | ConnectionError):
            return True
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 429) or status >= 500
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, suppressed contexts included: these reveal outages."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _same(there: RepoSibling, here: Path | bytes) -> bool:
    from huggingface_hub.utils.sha import git_hash

    content = here if isinstance(here, bytes) else here.read_bytes()
    if there.lfs is None:
        return bool(there.blob_id == git_hash(content))
    return bool(there.lfs.sha256 == hashlib.sha256(content).hexdigest())
