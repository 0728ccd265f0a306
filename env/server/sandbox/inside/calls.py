"""The functions that leave the REPL: sub-calls and FINAL.

Arguments are checked here, so that a mistake is an exception in the policy's own code. The host
trusts nothing and checks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Ask = Callable[[str, list[str], list[Any] | None], Any]


class FinalCalled(BaseException):
    """Ends the cell after FINAL; not an Exception, so that no ordinary handler catches it."""


class Calls:
    """Sub-calls and FINAL over one channel.

    Args:
        ask: Sends a sub-call to the host and blocks until its answer.
        finish: Sends the final value to the host.
        variables: The policy's namespace.
    """

    def __init__(self, ask: Ask, finish: Callable[[Any], None], variables: dict[str, Any]) -> None:
        self._ask = ask
        self._finish = finish
        self._variables = variables

    def llm_query(self, prompt: str, model: str | None = None) -> Any:
        """Ask for one completion without a REPL."""
        return self._ask("llm_query", [_prompt("llm_query", prompt)], None)

    def llm_query_batched(self, prompts: list[str], model: str | None = None) -> Any:
        """Ask for one completion for each prompt; texts in order."""
        texts = _prompts("llm_query_batched", prompts)
        return self._ask("llm_query_batched", texts, None) if texts else []

    def rlm_query(self, prompt: str, context: Any = None, model: str | None = None) -> Any:
        """Open a child with its own REPL and the given context; return its final value."""
        contexts = None if context is None else [context]
        return self._ask("rlm_query", [_prompt("rlm_query", prompt)], contexts)

    def rlm_query_batched(
        self,
        prompts: list[str],
        contexts: list[Any] | None = None,
        model: str | None = None,
        context_list: list[Any] | None = None,
    ) -> Any:
        """Open one child for each prompt, with the context at the same index; values in order."""
        contexts = context_list if contexts is None else contexts
        texts = _prompts("rlm_query_batched", prompts)
        if isinstance(contexts, dict):
            contexts = list(contexts.values())
        if contexts is not None:
            if not isinstance(contexts, (list, tuple)):
                raise TypeError("rlm_query_batched: contexts must be a list, one per prompt")
            contexts = list(contexts)
            if len(contexts) != len(texts):
                raise ValueError(
                    f"rlm_query_batched: {len(texts)} prompts and {len(contexts)} contexts"
                )
        return self._ask("rlm_query_batched", texts, contexts) if texts else []

    def order(self, text: str, passages: list[str]) -> list[int]:
        """Indices of passages in the server's order for a text."""
        places = self._ask("rank", [text, *passages], None)
        if isinstance(places, str):
            raise ValueError(f"rank: {places}")
        return places

    def FINAL(self, value: Any) -> None:
        """Give the answer and end the cell."""
        self._finish(value)
        raise FinalCalled

    def FINAL_VAR(self, name: Any) -> None:
        """Give the value of the variable with this name (or this value) as the answer."""
        if isinstance(name, str):
            key = name.strip().strip("'\"")
            if key in self._variables:
                self.FINAL(self._variables[key])
            if key.isidentifier():
                raise NameError(f"FINAL_VAR: there is no variable {key!r}")
        self.FINAL(name)


def _prompt(name: str, prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise TypeError(f"{name}: the prompt must be a text, not {type(prompt).__name__}")
    return prompt


def _prompts(name: str, prompts: Any) -> list[str]:
    if isinstance(prompts, str) or not isinstance(prompts, (list, tuple)):
        raise TypeError(f"{name}: prompts must be a list of texts")
    return [_prompt(name, prompt) for prompt in prompts]
