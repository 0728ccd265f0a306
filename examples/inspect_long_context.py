"""Measure `rlm serve` with inspect-ai: your questions about your documents.

Whatever speaks OpenAI's protocol can be measured by a harness that somebody else wrote, so this
page holds only the questions and leaves the asking, the retries, the scores and the logs to
inspect-ai. The questions, with their gold quotes, have the form of docs/own_data.md. The score is
inspect's own F1 over words, where quoting too much costs as much as missing something.

inspect-ai goes into the project's .venv; it adds packages to the tested set and changes none of it:

    pip install -c constraints.txt inspect-ai==0.3.285

Then serve the documents, and ask in another terminal:

    rlm serve --docs notes --base-url http://127.0.0.1:11434/v1 --model qwen3

    RLM_BASE_URL=http://127.0.0.1:8010/v1 RLM_API_KEY=none \
        inspect eval examples/inspect_long_context.py --model openai-api/rlm/notes \
        -T questions=$PWD/questions.jsonl

`inspect view` shows each question with its answer. A slow model wants `--max-connections 1` and
`-M client_timeout=3600`. To run a benchmark that puts its context into the prompt, write that
context to a folder and serve it, because the server reads documents when it starts and of a request
only the question.
"""

import re
from itertools import product
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import f1


@task
def long_context(questions: str) -> Task:
    """The questions of a file."""
    return Task(
        dataset=json_dataset(questions, sample),
        scorer=f1(answer_fn=quoted),
        # inspect repeats every status of 500 or more, forever; a question that fails is a 502.
        config=GenerateConfig(max_retries=2),
    )


def sample(row: dict[str, Any]) -> Sample:
    """A question and its targets: all its gold quotes in one text, once for each alternative."""
    evidence = [item.get("alternatives", [item]) for item in row["evidence"]]
    targets = [" ".join(quote["quote"] for quote in chosen) for chosen in product(*evidence)]
    return Sample(input=row["question"], target=targets)


def quoted(answer: str) -> str:
    """The quotes of an answer without its sentence, their fences and where they are."""
    fenced = r"^(`{3,})\n((?:(?!^\1).)*?)\n\n[^\n]*, characters \d+-\d+\n\1$"
    return "\n".join(text for _, text in re.findall(fenced, answer, flags=re.M | re.S))
