"""Code of the demonstrator's cells, as text.

Pure functions. The code uses the functions that `env/prompts.py` describes, and plain Python.
Neighbours: `keyed_plan.py` has the code of its own plan, `demonstrator.py` plays the cells.
"""

import re
from io import StringIO
from token import NAME
from tokenize import generate_tokens

_ASSIGNED = re.compile(r"\w{4,} = ")


def find_sentences(word: str) -> str:
    """Search all papers for the sentences with a word, and print their number."""
    return f"lines = sum(search(context, {text_literal(word)}).values(), [])\nprint(len(lines))"


def ask_readers(question: str, size: int) -> str:
    """Give numbered sentences to readers, and answer with those whose numbers they reply.

    Args:
        question: task of each reader.
        size: sentences of a reader.
    """
    return (
        f"task = {text_literal(question)}\n"
        f"parts = [range(k, min(k + {size}, len(lines))) for k in range(0, len(lines), {size})]\n"
        'asked = ["\\n".join([task, *(f"{n} {lines[n]}" for n in part)]) for part in parts]\n'
        'numbers = " ".join(llm_query_batched(asked)).split()\n'
        "FINAL([lines[int(n)] for n in numbers if n.isdigit()])"
    )


def misspelt(code: str) -> str | None:
    """The code with one misspelt variable, which raises a NameError; None if it has none.

    The first use after an assignment is misspelt, so that no sub-call is made before the error.
    """
    lines = code.split("\n")
    tokens = generate_tokens(StringIO(code).readline)
    names = [token for token in tokens if token.type == NAME]  # not those within texts
    for assigned in (token for token in names if _ASSIGNED.match(token.line[token.start[1] :])):
        name = assigned.string
        wrong = name[0] + name[2] + name[1] + name[3:]
        later = (use for use in names if use.string == name and use.start > assigned.start)
        if assigned.start[1] == 0 and wrong not in (name, *(n.string for n in names)):
            for use in later:
                row, column = use.start
                line = lines[row - 1]
                lines[row - 1] = line[:column] + wrong + line[column + len(name) :]
                return "\n".join(lines)
    return None


def text_literal(text: str) -> str:
    """A Python literal, in double quotes where that needs no escapes."""
    written = repr(text)
    return written if '"' in text or not written.startswith("'") else f'"{written[1:-1]}"'
