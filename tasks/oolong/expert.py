"""The scripted expert: its root counts by code, and its readers know the topic of each message.

It plays in the same harness as a model. With printed topics, its code reads them. Without, it
gives the messages to readers. `reply` needs only the text of a frame's first messages, so a server
can play the expert too; `accuracy` below 1 makes its readers err.
"""

from __future__ import annotations

import inspect
import re
from random import Random

from agent.policies.scripted import Scripted, block
from tasks.oolong.contexts import MONTHS, topic_of, topics
from tasks.oolong.questions import DOCUMENT, read_question
from tasks.oolong.solve import solve

_READ = "Give the topic of each message, one a line, as NUMBER: TOPIC."
_PART = 6000
"""Characters of messages that one reader gets."""
_CODE = """\
from collections import Counter
{solve}
months = {months}
lines = [line.split(" | ", {columns} - 1) for line in context[{document}].split("\\n")]
if {columns} == 4:
    found = [line[2] for line in lines]
else:
    prompts = []
    for number, line in enumerate(lines):
        if not prompts or len(prompts[-1]) > {part}:
            prompts.append({read})
        prompts[-1] += "\\n" + str(number) + ". " + line[2]
    replies = []
    for start in range(0, len(prompts), {children}):
        replies += llm_query_batched(prompts[start:start + {children}])
    known = dict(row.split(": ", 1) for reply in replies for row in reply.split("\\n"))
    found = [known[str(number)] for number in range(len(lines))]
rows = [(months[int(line[0][5:7]) - 1], line[1], topic) for line, topic in zip(lines, found)]
FINAL((solve({kind}, rows, {parts}) or [""])[0])"""
_LINE = re.compile(r"\d{4}-(\d\d)-\d\d \| (\w+) \| (?:(\w+) \| )?(.+)")


def expert(children: int, accuracy: float = 1.0) -> Scripted:
    """Policy of the expert.

    Args:
        children: most sub-calls of a call.
        accuracy: share of messages whose topic its readers know.
    """
    return Scripted(lambda seen: reply(seen.opening[-1].content, children, accuracy))


def is_reader(text: str) -> bool:
    """Whether a frame's message is the expert's prompt to a reader."""
    return text.startswith(_READ)


def shows_context(text: str) -> bool:
    """Whether a message is a plain prompt, with the context itself."""
    return _LINE.search(text) is not None


def reply(text: str, children: int, accuracy: float) -> str:
    """Turn of a frame, from its last first message: the root's code, or a reader's topics.

    Raises:
        ValueError: the message is neither a question of the benchmark nor a reader's prompt.
    """
    if is_reader(text):
        rows = (line.partition(". ") for line in text.split("\n")[1:])
        return "\n".join(f"{number}: {read(said, accuracy)}" for number, _, said in rows)
    kind, parts = read_question(text)
    code = _CODE.format(
        solve=inspect.getsource(solve),
        months=repr(MONTHS),
        columns=4 if "date | user | topic | text" in text else 3,
        document=repr(DOCUMENT),
        part=_PART,
        read=repr(_READ),
        children=children,
        kind=repr(kind),
        parts=repr(parts),
    )
    return block(code)


def read(text: str, accuracy: float) -> str:
    """Topic of a message; wrong for the same messages each time."""
    topic = topic_of(text)
    rng = Random(text)
    if rng.random() < accuracy:
        return topic
    return rng.choice([name for name in topics() if name != topic])


def answer_plainly(text: str, accuracy: float) -> str:
    """Answer to a prompt with context and question, as a model without a REPL could give it."""
    kind, parts = read_question(text)
    rows = [
        (MONTHS[int(month) - 1], user, label or read(said, accuracy))
        for month, user, label, said in _LINE.findall(text)
    ]
    return (solve(kind, rows, parts) or [""])[0]
