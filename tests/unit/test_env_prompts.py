"""Texts of the harness: the weights of nano depend on each compact one."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env import prompts
from env.chat_tokens import TOKEN, split_chat_tokens, split_span, without_chat_tokens
from env.ranking import rank
from env.settings import EnvSettings, LimitSettings

LIMITS = LimitSettings()
COMPACT, FULL = EnvSettings(), EnvSettings(prompt_style="full", search_window=7)
TOKENS = [
    *("<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|begin_of_text|>", "<|user|>"),
    *("<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<|turn>", "<turn|>", "<channel|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<pad>"),
    *("<s>", "</s>", "<<SYS>>", "<</SYS>>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[TOOL_RESULTS]", "[gMASK]", "<sop>", "<eop>", "<think>", "</think>"),
    *("<|start_header_id|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>", "<unk>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "<tools>", "[IMG]", "[IMG_END]", "[THINK]"),
    *("<start_of_image>", "<image_soft_token>", "<image>"),
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
]


def test_compact_prompts() -> None:
    contexts = ("text", {"p1": "a", "p2": "b"}, None)
    found = [
        prompts.root_messages(COMPACT, "Which?", 5),
        *(prompts.child_messages(COMPACT, "It", context) for context in contexts),
        prompts.llm_messages("compact", "Is it?"),
    ]
    assert {tuple(message.role for message in one) for one in found} == {("system", "user")}
    child = "Find the sentences in your part. Write one repl block."
    assert [[message.content for message in one] for one in found] == [
        ["Find every sentence that answers. Write one repl block.", "Which?\ncontext: 5 papers"],
        [child, "It\ncontext: str"],
        [child, "It\ncontext: 2 papers"],
        [child, "It\ncontext: none"],
        ["Answer.", "Is it?"],
    ]


def test_full_style_says_every_name_and_limit() -> None:
    system = prompts.root_messages(FULL, "Why?", 5)[0].content
    for name in (
        *("search(", "rank(", "near(", "list_papers(", "extract(", "SHOW_VARS("),
        *("llm_query(", "llm_query_batched(", "rlm_query(", "rlm_query_batched("),
        *("FINAL(", "FINAL_VAR(", "window=7", f"{LIMITS.max_turns} turns"),
        *(f"{LIMITS.max_frames} agents", f"{LIMITS.observation_chars} characters"),
    ):
        assert name in system, name
    assert "{{" not in system
    assert not any(f"{{{name}" in system for name in LimitSettings.model_fields)


def test_the_worked_examples_are_python_with_the_functions_of_the_repl() -> None:
    root = prompts.root_messages(FULL, "Why?", 5)[0].content
    child = prompts.child_messages(FULL, "Why?", "a text")[0].content
    blocks = re.findall(r"^```repl\n(.*?)^```$", root + child, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4

    handed: list[str] = []

    def ask(questions: list[str], papers: list[str]) -> list[list[str]]:
        handed.extend(papers)
        return [[paper] for paper in papers]

    context = {"a": "Kalvot on Mirbex: 3.", "b": "Kalvot is here.", "c": "Nothing."}
    found = {"a": ["Kalvot on Mirbex: 3."], "b": ["Kalvot is here."]}
    answers: list[object] = []
    names = {
        "context": context,
        "search": lambda text, _: found if isinstance(text, dict) else found["a"],
        "rank": rank,
        "llm_query_batched": lambda asked: ["1" if "\n1 Kalvot on" in p else "" for p in asked],
        "rlm_query_batched": ask,
        "FINAL": answers.append,
    }
    exec(blocks[0] + blocks[1], names)
    exec(blocks[2], names)
    exec(blocks[3], names | {"context": context["a"]})
    assert handed == [context["a"]]
    assert answers == [[[context["a"]]], [{"paper_id": "a", "text": context["a"]}], [context["a"]]]


def test_observation_is_output_then_names_then_trouble() -> None:
    text = prompts.cell_message("5\n", 0, ["h", "p"], "ValueError: no", LIMITS)
    assert text == "5\nnew: h, p\nValueError: no"
    assert prompts.cell_message("", 0, [], "", LIMITS) == "(no output)"
    assert prompts.cell_message("abc", 40, [], "", LIMITS) == "abc\n[40 characters cut]"


@pytest.mark.parametrize("token", TOKENS)
def test_no_text_can_end_the_users_message(token: str) -> None:
    assert token not in prompts.cell_message(f"a {token} b", 0, [], "", LIMITS)
    for messages in (
        prompts.root_messages(FULL, token, 3),
        prompts.child_messages(COMPACT, token, None),
        prompts.llm_messages("full", token),
    ):
        assert all(token not in message.content for message in messages)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS, *"<>|[]/ax \n\uff5c"])).map("".join))
def test_no_text_becomes_a_token_by_what_is_taken_out_or_put_in(text: str) -> None:
    removed = without_chat_tokens(text)
    assert not TOKEN.search(removed)
    assert len(removed) <= len(text)
    assert not TOKEN.search(split_chat_tokens(text))
    assert split_chat_tokens(text).replace(" ", "") == text.replace(" ", "")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS, *"<>|[a "]), min_size=1).map("".join), st.data())
def test_a_span_moves_with_the_spaces_before_and_within_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    first, last = split_span(text, start, end)
    moved = split_chat_tokens(text)[first:last]
    assert (moved[0], moved[-1]) == (text[start], text[end - 1])
    assert moved.replace(" ", "") == text[start:end].replace(" ", "")


@pytest.mark.parametrize("text", ["a < b", "x <b> [1] [MASK]", "f(x) | g", "a[i] <= s>t", "<div>"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_chat_tokens(text) == split_chat_tokens(text) == text
