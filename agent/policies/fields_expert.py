"""Expert for the world `fields`, without a model; its readers hold the lexicon.

The root finds the sentences of the method and hands some of them to each reader. It keeps those
of the field that the question names. It sees only what a client sees.
"""

from __future__ import annotations

from typing import Literal

from agent.policies.scripted import Scripted, Seen, block
from env.problems.fields import field_of, read_question

_SEARCH = """\
h = search(context, "{method}")
s = [(i, t) for i in h for t in h[i]]
print(len(s))"""

_ASK = """\
p = ["\\n".join(t for i, t in s[k:k+{size}]) for k in range(0, len(s), {size})]
r = []
for k in range(0, len(p), 8):
    r += {ask}_batched(p[k:k+8])
f = " ".join(r).split()
FINAL([{{"paper_id": i, "text": t}} for (i, t), g in zip(s, f) if g == "{field}"])"""


def fields_expert(
    lexicon: int = 512, size: int = 4, ask: Literal["llm_query", "rlm_query"] = "llm_query"
) -> Scripted:
    """Policy with two root turns and a reader for every `size` sentences.

    Args:
        lexicon: names of the lexicon.
        size: sentences of a reader.
        ask: `llm_query` for readers without a REPL, `rlm_query` for children.
    """

    def script(seen: Seen) -> str:
        if seen.request.kind == "llm":
            return _read(seen.task)
        if seen.request.depth:
            return block(f'FINAL("{_read(seen.task)}")')
        method, field = read_question(seen.task)
        if seen.turn == 0:
            return block(_SEARCH.format(method=method))
        return block(_ASK.format(size=size, ask=ask, field=field))

    def _read(task: str) -> str:
        return " ".join(field_of(line, lexicon) for line in task.split("\n"))

    return Scripted(script)
