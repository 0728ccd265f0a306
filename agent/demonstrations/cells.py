"""Code of the demonstrator's cells, as text.

Pure functions. The code uses the functions that `env/prompts.py` describes, and plain Python.
Neighbours: `reading_plan.py` chooses words and passages, `demonstrator.py` plays the cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from token import NAME
from tokenize import generate_tokens

_ASSIGNED = re.compile(r"\w{4,} = ")


def find_papers(words: Sequence[str], chars: int) -> str:
    """Search all papers for some words, and print passages of each paper with a hit.

    Args:
        words: words of the question.
        chars: characters to print of each paper.
    """
    return (
        f"words = {_listed(words)}\n"
        "hits = {}\n"
        "for word in words:\n"
        "    for paper_id, passages in search(context, word).items():\n"
        "        hits.setdefault(paper_id, []).extend(passages)\n"
        "for paper_id, passages in hits.items():\n"
        f'    print(paper_id, len(passages), " ... ".join(passages)[:{chars}])'
    )


def ask_children(prompt: str, papers: Sequence[str] | None, most: int) -> str:
    """Give papers to children, and answer with all that they quote.

    Args:
        prompt: task of each child.
        papers: ids of the papers; None for all.
        most: most children of one call; with more papers, the code makes several calls.
    """
    chosen = "list(context)" if papers is None else _listed(papers)
    lines = [f"papers = {chosen}", f"prompt = {text_literal(prompt)}"]
    if papers is not None and len(papers) <= most:
        lines.append(
            "found = rlm_query_batched([prompt] * len(papers), [context[p] for p in papers])"
        )
    else:
        lines += [
            "found = []",
            f"for k in range(0, len(papers), {most}):",
            f"    part = papers[k:k + {most}]",
            "    found += rlm_query_batched([prompt] * len(part), [context[p] for p in part])",
        ]
    return "\n".join(
        [
            *lines,
            'FINAL([{"paper_id": p, "text": t} for p, texts in zip(papers, found) for t in texts])',
        ]
    )


def look(words: Sequence[str], chars: int) -> str:
    """Print the passages of a text around some words, at most `chars` characters of them."""
    return (
        f"words = {_listed(words)}\n"
        "found = [passage for word in words for passage in search(context, word)]\n"
        f'print("\\n".join(dict.fromkeys(found))[:{chars}])'
    )


def page(start: int, chars: int) -> str:
    """Print a stretch of a text."""
    return f"start = {start}\nprint(context[start:start + {chars}])"


def quote(passages: Sequence[str]) -> str:
    """Answer with quotes if all are verbatim; otherwise print those that are not.

    Args:
        passages: Python expressions of the quotes.
    """
    if not passages:
        return "FINAL([])"
    lines = "".join(f"    {passage},\n" for passage in passages)
    return (
        f"quotes = [\n{lines}]\n"
        "wrong = [text for text in quotes if text not in context]\n"
        'print("not verbatim:", wrong) if wrong else FINAL(quotes)'
    )


def extracted(passage: str, edge: int) -> str:
    """Python expression that takes a long passage from `context` by its first and last words."""
    return f"extract(context, {text_literal(passage[:edge])}, {text_literal(passage[-edge:])})"


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


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(text_literal, texts))}]"


def text_literal(text: str) -> str:
    """A Python literal, in double quotes where that needs no escapes."""
    written = repr(text)
    if '"' in text or not written.startswith("'"):
        return written
    return f'"{written[1:-1]}"'
