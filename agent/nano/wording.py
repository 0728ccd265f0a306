"""Questions in words of no language, so that the policy looks for names and not for wordings.

Taught in a handful of wordings alone, a small model goes astray at the first word it never read.
So a share of what it learns from asks in made-up words: around the names they differ in number,
length and letters, and only the order of the two names is kept. Nothing of the test split's
wordings is in them.
"""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from agent.nano.demonstrations import Conversation, names_of
from env.problems.synthetic import QUESTIONS

_KNOWN = sorted({word for form in QUESTIONS for word in form.lower().split() if word.isalpha()})
_INVENTED = 0.7
_LETTERS = (2, 7)


def with_words(conversation: Conversation, rng: Random) -> Conversation:
    """A root's conversation whose question is asked in made-up words."""
    system, opening, *rest = conversation
    question, *lines = opening["content"].split("\n")
    asked = "\n".join([made_up(question, rng), *lines])
    return [system, {**opening, "content": asked}, *rest]


def made_up(question: str, rng: Random) -> str:
    """Random words around the names of a question, which keep their order.

    Raises:
        ValueError: the question does not hold two names.
    """
    first, second = names_of(question)
    before, between, after = (_words(rng, *bounds) for bounds in ((0, 5), (1, 4), (0, 3)))
    comma = "," if rng.random() < 0.3 else ""
    text = " ".join([*before, first + comma, *between, second, *after])
    return f"{text[0].upper()}{text[1:]}{rng.choice('?.')}"


def _words(rng: Random, fewest: int, most: int) -> list[str]:
    return [_word(rng) for _ in range(rng.randint(fewest, most))]


def _word(rng: Random) -> str:
    if rng.random() >= _INVENTED:
        return rng.choice(_KNOWN)
    return "".join(rng.choices(ascii_lowercase, k=rng.randint(*_LETTERS)))
