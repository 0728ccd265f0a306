"""Answers to questions about a folder of documents, by any model.

A model is registered, in a folder, or behind an OpenAI-compatible endpoint. All play the same
recursive episodes on their own environment server. `flows/ask.py` is the command.
"""

# Heavy modules are imported where they are needed: an endpoint needs neither torch nor MLflow.
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageError, as_stage_error
from tasks.params import Params

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from agent.policies.base import Policy
    from agent.policies.endpoint import Usage
    from agent.rollouts.own_documents import Answer
    from agent.rollouts.trajectory import Trajectory

ATTEMPTS = 3
"""Tries of a request to an endpoint, since somebody waits for the answer."""
SMALL_VOCABULARY = 2000
MOST_TOKENS = 0.5
"""Tokens per character beyond which a model with a small vocabulary reads letters, not words."""
SHOWN = 10
"""Documents left out that are named."""
PROFILE = "documents"
"""Profile whose settings an endpoint plays with."""


@dataclass(frozen=True)
class AskedModel:
    """A model, and the settings that it plays with."""

    name: str
    params: Params
    folder: Path | None = None
    """Weights and tokenizer; None for an endpoint."""
    base_url: str | None = None


@dataclass(frozen=True)
class AskedAnswer:
    """Answer to one question."""

    answer: Answer
    episode: Trajectory
    usage: Usage | None = None
    """Requests and tokens of an endpoint for this question."""


def stored(wanted: str) -> AskedModel:
    """A model folder, or a registered version by its number or alias.

    Raises:
        StageError: the version does not exist, or its artifact is gone.
        ConfigError: the version was registered with settings unknown to this code.
    """
    from tasks import config

    here = config.load_resolved()
    if Path(wanted).is_dir():
        return AskedModel(wanted, here, Path(wanted))
    from tasks.registry import versions

    name = here.register_.model_name
    version: ModelVersion | None
    if wanted.isdecimal():
        version = versions.get_version(name, wanted)
    else:
        champion = wanted == "champion"
        version = versions.champion(name) if champion else versions.by_alias(name, wanted)
    if version is None and wanted == "champion":
        raise StageError(
            f"{name} has no champion yet. Train and promote one with `make full`, or ask another "
            "model: --model FOLDER, or --base-url URL --model NAME."
        )
    if version is None:
        raise StageError(
            f"{name} has no version {wanted!r}, and no such folder exists. List the versions with "
            "`rlm models`. A model behind an endpoint also needs --base-url."
        )
    title = f"{name} version {version.version}"
    return AskedModel(title, versions.settings(version), versions.download(version))


def read_documents(docs: Path, params: Params) -> tuple[dict[str, str], list[str]]:
    """Text of each readable document by its path in the folder, and why others were left out.

    Raises:
        StageError: no document in the folder can be read, or all are too long together.
    """
    from env.problems.schema import Paper
    from tasks.data.documents import READABLE, Documents

    most = params.env.document_chars
    folder = Documents(docs, most, params.prepare.files.max_mb, "env.document_chars")
    texts: dict[str, str] = {}
    left_out, size = [], 0
    for name in folder.names():
        paper = folder.get(name)
        if not isinstance(paper, Paper):
            left_out.append(f"{paper.row}: {paper.reason}; {paper.remedy}")
            continue
        texts[paper.paper_id] = paper.text
        size += len(paper.text)
        if size > most:
            raise StageError(
                f"the documents in {docs} have more than {most:,} characters in total "
                "(env.document_chars). Name a smaller folder."
            )
    if len(left_out) > SHOWN:
        left_out[SHOWN:] = [f"{len(left_out) - SHOWN:,} more documents cannot be read"]
    if others := folder.other_formats():
        kinds = ", ".join(f"{kind or 'none'} ({count})" for kind, count in others.most_common())
        left_out.append(f"files of other formats: {kinds}")
    if not texts:
        reasons = "".join(f"\n  {reason}" for reason in left_out)
        raise StageError(f"no document ({', '.join(READABLE)}) can be read in {docs}{reasons}")
    return texts, left_out


def require_readable(model: AskedModel, documents: dict[str, str]) -> None:
    """Refuse documents in a language of which the model knows no words.

    Raises:
        StageError: its vocabulary is small, and spells the documents letter by letter.
    """
    file = model.folder / "tokenizer.json" if model.folder else None
    if file is None or not file.is_file():
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    text = "\n".join(part[:2000] for part in documents.values())[:20_000]
    tokens = len(tokenizer.encode(text).ids) / len(text)
    if tokenizer.get_vocab_size() < SMALL_VOCABULARY and tokens > MOST_TOKENS:
        raise StageError(
            f"{model.name} cannot read these documents: it knows {tokenizer.get_vocab_size()} "
            "tokens, those of the small made-up world in which it was trained. Ask a model that "
            "reads your language: --base-url URL --model NAME, for example of Ollama or vLLM. Or "
            "train one on a GPU: make full ARGS='--profile t4'."
        )


Ask = Callable[[str, int], AskedAnswer]
"""Answers a question with a sampling seed.

It raises a StageError if the question cannot be asked, or the model or the environment fails.
"""


@contextmanager
def opened(model: AskedModel, documents: dict[str, str]) -> Iterator[Ask]:
    """A function that answers questions; model and environment stay loaded within the block.

    Raises:
        StageError: the model cannot be loaded, the endpoint refuses, or no server starts.
    """
    from agent.rollouts import own_documents
    from tasks.registry import serving

    params = serving.for_documents(model.params)
    with as_stage_error():
        policy = _policy(model, params)
        with closing(policy) if model.base_url else nullcontext():
            if model.base_url:
                policy.check()
            with serving.own_server(params) as url:

                def ask(question: str, seed: int) -> AskedAnswer:
                    task = own_documents.Question(question, documents, seed)
                    if reason := own_documents.fault(task, params.env):
                        raise StageError(reason)
                    before = _used(policy)
                    with as_stage_error():
                        [(answer, episode)] = serving.play(policy, url, [task], params)
                    if answer.void is not None:
                        trouble = getattr(policy, "trouble", "")
                        said = f"; the endpoint: {trouble}" if trouble else ""
                        raise StageError(f"the episode was lost ({answer.void}{said}). Ask again.")
                    after = _used(policy)
                    usage = _since(before, after) if before and after else None
                    return AskedAnswer(answer, episode, usage)

                yield ask


def _policy(model: AskedModel, params: Params) -> Any:
    if model.base_url is None:
        from tasks import evaluate

        assert model.folder is not None
        policy: Policy = evaluate.load_policy(model.folder, params.serving)
        return policy
    from agent.policies.endpoint import EndpointPolicy

    settings = params.evaluate_model
    return EndpointPolicy(
        model.base_url,
        model.name,
        params.serving,
        sampling=settings.sampling,
        template_kwargs=settings.template_kwargs,
        concurrency=settings.concurrency,
        timeout_s=settings.timeout_s,
        attempts=ATTEMPTS,
    )


def _used(policy: Any) -> Usage | None:
    """Copy of an endpoint's usage so far; None for a local model."""
    return replace(policy.usage) if hasattr(policy, "usage") else None


def _since(before: Usage, after: Usage) -> Usage:
    counts = {name: count - getattr(before, name) for name, count in vars(after).items()}
    return replace(after, **counts)
