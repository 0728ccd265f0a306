"""Answers to questions about a folder of documents, by any model.

A model is registered, in a folder, or behind an OpenAI-compatible endpoint. All play the same
recursive episodes on their own environment server. `flows/ask.py` and `flows/mcp_server.py` ask.
"""

# Heavy modules are imported where they are needed: an endpoint needs neither torch nor MLflow.
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

from env.embedding import embedder, installed
from env.ranking import near, rank
from env.settings import DOCUMENT_CHARS
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.errors import StageError, as_stage_error, visible

if TYPE_CHECKING:
    from agent.policies.base import Policy
    from agent.policies.endpoint import Usage
    from agent.rollouts.own_documents import Answer, Question

SMALL_VOCABULARY = 2000
MOST_TOKENS = 0.4
"""Tokens per character beyond which a model with a small vocabulary reads letters, not words."""
SHOWN = 10
"""Documents left out that are named."""
PASSAGES, NEAR_CHARS = 12, 600
"""Passages that are ranked for an answer without a model, and the widest gap between those that it
has, around the best one."""
READ = 128
"""Passages that all-MiniLM-L6-v2 reads, the first by BM25: three seconds for a new folder."""
CLOSE = 0.45
"""Least cosine of the best passage. It parts headings from a manual that has them and from one that
hasn't best: 92 % of 300 headings have a closer passage in their own, 3 % in the other."""
BY_WORDS = "search by BM25 (no model)"
PROFILE = "documents"
"""Profile whose settings an endpoint plays with."""


@dataclass(frozen=True)
class AskedModel:
    """A model, and the settings that it plays with."""

    name: str
    params: Params
    folder: Path | None = None
    """Weights and tokenizer; None for an endpoint, and for ranked passages."""
    base_url: str | None = None
    default: bool = False
    """Whether nobody named it, so that ranked passages may answer in its place."""

    @property
    def reads(self) -> bool:
        """Whether a model reads the documents."""
        return self.folder is not None or self.base_url is not None


@dataclass(frozen=True)
class AskedAnswer:
    """Answer to one question."""

    answer: Answer
    usage: Usage | None = None
    """Requests and tokens of an endpoint for this question."""
    cut: str = ""
    """Why an endpoint's model could not go on; empty if it could."""
    instead: str = ""
    """Why ranked passages answer in the model's place; empty if they don't."""
    by: str = ""
    """The search that answers, if no model does."""

    def cost(self, params: Params) -> float | None:
        """Price of an endpoint's tokens; None if it counts none or is no endpoint, 0 unpriced."""
        prices = params.evaluate_model
        if self.usage is None:
            return None
        return self.usage.cost(prices.prompt_price, prices.completion_price)


Ask = Callable[..., AskedAnswer]
"""Answers a question about documents: `ask(question, documents, seed, stop=...)`."""


def stored(wanted: str) -> AskedModel:
    """A model folder, or a registered version by its number, its alias or its address.

    Without a champion, ranked passages answer in its place.

    Raises:
        StageError: the version does not exist, or its artifact is gone.
        ConfigError: the version was registered with settings unknown to this code.
    """
    from tasks import config

    here = config.load_resolved()
    if Path(wanted).is_dir():
        return AskedModel(wanted, here, Path(wanted))
    from tasks.registry import versions

    name, wanted = versions.parse(wanted) or (here.register_.model_name, wanted)
    version = versions.find(name, wanted)
    if version is None and wanted == "champion":
        return _ranked(here)
    if version is None:
        raise StageError(
            f"{name} has no version {wanted!r}, and no such folder exists. List the versions with "
            "`rlm models`. A model behind an endpoint also needs --base-url."
        )
    title = f"{name} version {version.version}"
    at = versions.download(version)
    return AskedModel(title, versions.settings(version), at, default=wanted == "champion")


def _ranked(params: Params) -> AskedModel:
    return AskedModel("search by all-MiniLM-L6-v2 (no model)" if installed() else BY_WORDS, params)


def read_documents(docs: Path, params: Params) -> tuple[dict[str, str], list[str]]:
    """Text of each readable document by its path in the folder, and why others were left out.

    Raises:
        StageError: no document in the folder can be read, or all are too long together.
    """
    from env.problems.schema import Paper
    from tasks.data.documents import READABLE, Documents

    folder = Documents(docs, DOCUMENT_CHARS)
    texts: dict[str, str] = {}
    left_out, size = [f"{one.row}: {one.reason}; {one.remedy}" for one in folder.closed], 0
    for name in folder.names():
        paper = folder.get(name)
        if not isinstance(paper, Paper):
            left_out.append(f"{paper.row}: {paper.reason}; {paper.remedy}")
            continue
        texts[paper.paper_id] = paper.text
        size += len(paper.text)
        if size > DOCUMENT_CHARS:
            raise StageError(
                f"the documents in {docs} have more than {DOCUMENT_CHARS:,} characters in "
                "total. Name a smaller folder."
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


def reader_of(model: AskedModel, documents: dict[str, str]) -> AskedModel:
    """The model, or ranked passages in place of a champion that doesn't read such documents.

    A model that learnt from made-up problems says no to real passages.

    Raises:
        StageError: the model was named, its vocabulary is small, and it spells the documents
            letter by letter.
    """
    file = model.folder / "tokenizer.json" if model.folder else None
    if file is None or not file.is_file():
        return model
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    size = tokenizer.get_vocab_size()
    if size >= SMALL_VOCABULARY:
        made_up = model.params.prepare.source == "synthetic"
        return _ranked(model.params) if model.default and made_up else model
    text = "\n".join(part[:2000] for part in documents.values())[:20_000]
    if len(tokenizer.encode(text).ids) / len(text) <= MOST_TOKENS:
        return model
    if model.default:
        return _ranked(model.params)
    raise StageError(
        f"{model.name} knows the {size} tokens of a small made-up world, and can't read these "
        "documents. Name one that reads your language with --base-url URL --model NAME, or train "
        "one on your documents (docs/own_data.md)."
    )


def ranked_passages(
    params: Params, question: str, documents: Mapping[str, str], seed: int = 0, **_: Any
) -> AskedAnswer:
    """Answer with the best passage and those around it, which no model reads.

    They're ranked by meaning where all-MiniLM-L6-v2 is installed and finds a close one, else by the
    words they share, which finds names that it doesn't know.

    Raises:
        StageError: the question cannot be asked.
    """
    from agent.rollouts.own_documents import Answer, Question, Quote

    require_askable(Question(question, documents, seed), params)
    began = time.monotonic()
    with as_stage_error():  # the model may be broken
        close = by_meaning(documents, question, PASSAGES) if installed() else []
        found = close or rank(documents, question, PASSAGES)
    quotes = []
    for name, text in near(documents, found, NEAR_CHARS):
        start = documents[name].index(text)
        quotes.append(Quote(document=name, start=start, end=start + len(text), text=text))
    seconds = round(time.monotonic() - began, 3)
    by = BY_WORDS if found and not close else _ranked(params).name
    return AskedAnswer(Answer(evidence=quotes, stop_reason="final", seconds=seconds), by=by)


def require_askable(question: Question, params: Params) -> None:
    """Refuse a question that cannot be asked.

    Raises:
        StageError: the message says what is wrong.
    """
    from agent.rollouts.own_documents import question_fault

    if reason := question_fault(question, params.env):
        raise StageError(reason)


def by_meaning(documents: Mapping[str, str], question: str, most: int) -> list[tuple[str, str]]:
    """Name and text of the passages that mean what is asked; none if the best isn't close."""
    meaning = embedder()
    passages = rank(documents, question, most, order=meaning.order, ordered=READ)
    scores = meaning.scores(question, [text for _, text in passages]) if passages else [0.0]
    return passages if max(scores) >= CLOSE else []


def play_question(
    policy: Any,
    url: str,
    params: Params,
    question: str,
    documents: Mapping[str, str],
    seed: int = 0,
    stop: Flag | None = None,
) -> AskedAnswer:
    """Answer one question with a loaded model, in any thread; one at a time.

    A model that ranks by meaning isn't asked if no passage is close to the question.

    Args:
        policy: model.
        url: environment that allows users' documents.
        params: settings of both.
        question: the question.
        documents: text by name.
        seed: sampling seed, in the mode `sampled`.
        stop: when it is set, the work ends soon and sends no more requests.

    Raises:
        StageError: the question cannot be asked, is stopped, or the model or the environment fails.
    """
    from agent.errors import StoppedError
    from agent.rollouts.own_documents import Answer, Question
    from tasks.registry import serving

    task, stop = Question(question, documents, seed), stop or Flag()
    require_askable(task, params)
    can_write = hasattr(policy, "beside")
    if can_write:
        policy = policy.beside(stop)

    def require_wanted(_: int = 0) -> None:
        if stop.is_set():
            raise StoppedError("the question is no longer wanted")

    with as_stage_error():
        require_wanted()
        # Models of our own have learnt only questions with an answer, and say yes to others.
        by_rank = params.env.rank == "minilm" and not can_write
        if by_rank and not by_meaning(documents, question, PASSAGES):
            return AskedAnswer(Answer(stop_reason="final"))
        [(answer, _)] = serving.play(policy, url, [task], params, require_wanted)
    if answer.void is not None:
        trouble = getattr(policy, "trouble", "")
        said = f"; the endpoint: {trouble}" if trouble else ""
        raise StageError(f"the episode was lost ({answer.void}{said}). Ask again.")
    return AskedAnswer(answer, policy.usage, policy.cut) if can_write else AskedAnswer(answer)


def answer_or_rank(
    play: Ask,
    model: AskedModel,
    question: str,
    documents: Mapping[str, str],
    seed: int = 0,
    stop: Flag | None = None,
) -> AskedAnswer:
    """The model's answer, or ranked passages where it ends without one."""
    reply = play(question, documents, seed, stop)
    if reply.answer.stop_reason == "final":
        return reply
    why = f"{verdict(reply)} Passages are ranked, and nobody reads them."
    ranked = ranked_passages(model.params, question, documents)
    return replace(ranked, instead=f"{model.name}: {why}")


def verdict(reply: AskedAnswer) -> str:
    """Sentence about an answer without evidence."""
    answer, why = reply.answer, f" ({visible(reply.cut)})" if reply.cut else ""
    if answer.stop_reason == "final" and not answer.turns:
        return f"No passage {'is close to' if installed() else 'shares a word with'} the question."
    if answer.stop_reason == "final":
        return "Nothing in these documents answers that."
    return f"The model gave no answer; its episode ended with {answer.stop_reason!r}{why}."


@contextmanager
def opened(model: AskedModel) -> Iterator[Ask]:
    """Load model and environment for the time of the block; yields what answers.

    An endpoint has at most `evaluate_model.concurrency` requests in flight.

    Raises:
        StageError: the model cannot be loaded, the endpoint refuses, or no server starts.
    """
    if not model.reads:
        yield partial(ranked_passages, model.params)
        return
    from tasks.registry import serving

    params = serving.for_documents(model.params)
    with as_stage_error(), ExitStack() as stack:
        if model.base_url is not None:
            endpoint = serving.endpoint(params, model.base_url, model.name, params.serving)
            policy: Policy = stack.enter_context(closing(endpoint))
            endpoint.check()
        else:
            from tasks import evaluate

            assert model.folder is not None  # since it reads
            policy = evaluate.load_policy(model.folder, params.serving)
        url = stack.enter_context(local_server(params, None))
        plays = partial(play_question, policy, url, params)
        yield partial(answer_or_rank, plays, model) if model.default else plays
