"""Chat templates of the families of models: each can be played, or the settings are named.

TRL ships most of them. The others have the property of the real one that matters here.
"""

from pathlib import Path
from typing import Any

import pytest
import trl
from helpers import random_model
from tokenizers import Tokenizer

from agent.errors import PolicyError
from agent.models.chat_template import ChatFormat, bake
from agent.settings import ModelSettings
from env.models import Message

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

SHIPPED = Path(trl.__file__).parent / "chat_templates"
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- set moved = loop.last and messages[0]["role"] == "system" %}
        {{- "[INST] " + (messages[0]["content"] + "\\n\\n" if moved else "") }}
        {{- message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""
"""As Mistral v0.3: the last user message has the system text, and a space precedes a reply."""


def source(family: str) -> str:
    """Template of a family."""
    if family == "mistral":
        return MISTRAL
    if family == "qwen3_thinking_2507":  # always opens a thought, and has no argument against it
        qwen3 = source("qwen3").partition("    {%- if enable_thinking")[0]
        return qwen3.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}") + "{%- endif %}"
    return (SHIPPED / f"{family}.jinja").read_text(encoding="utf-8")


def tokenizer_of(family: str) -> Any:
    """A tokenizer with the template and the special tokens of a family."""
    from transformers import PreTrainedTokenizerFast

    end = {
        **dict.fromkeys(("gemma", "gemma3"), "<end_of_turn>"),
        **dict.fromkeys(("llama3_1", "llama3_2"), "<|eot_id|>"),
        "deepseek_r1_distill": "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "mistral": "</s>",
    }.get(family, "<|im_end|>")
    core = Tokenizer.from_str(random_model.tokenizer().backend_tokenizer.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, name_or_path=family)
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": end})
    tokenizer.chat_template = source(family)
    return tokenizer


OFF = {"enable_thinking": False}
DAY = {"date_string": "26 Jul 2024"}
HYBRID = ("qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6")
PLAYED = [
    *(("qwen2_5", kind, {}) for kind in ("own", "training")),
    *(("qwen3_instruct_2507", kind, {}) for kind in ("own", "training")),
    *((family, "training", OFF) for family in (*HYBRID, "qwen3_8")),
    ("llama3_1", "own", {}),
    ("llama3_2", "own", DAY),
    ("gemma", "own", {}),
    ("gemma3", "own", {}),
    ("mistral", "own", {}),
]
QUIET = r"Set model\.template_kwargs: \{enable_thinking: false\} and model\.template: training"
NO_THINKER = r"use a model that does not think"
REFUSED = [
    ("qwen3", "own", {}, rf"the model thinks\. {QUIET}"),
    ("qwen3", "own", {"enable_thinking": True}, QUIET),
    *((family, "own", OFF, rf"rewrites earlier turns.*{QUIET}") for family in HYBRID),
    ("qwen3", "training", {}, QUIET),
    ("qwen3_6", "own", {}, rf"open a thought\. {QUIET}"),
    ("qwen3_thinking_2507", "own", OFF, rf"open a thought.*{NO_THINKER}"),
    ("deepseek_r1_distill", "own", {}, rf"open a thought.*{NO_THINKER}"),
    ("llama3_2", "own", {}, r"today's date.*\{date_string: 26 Jul 2024\}"),
    ("llama3_1", "training", {}, r"TRL has no training template.*Set model\.template to own"),
    ("gemma", "absent.jinja", {}, r"model\.template: absent\.jinja cannot be read"),
]


def settings(template: str, arguments: dict[str, Any]) -> ModelSettings:
    return ModelSettings(template=template, template_kwargs=arguments)


@pytest.mark.parametrize(("family", "template", "arguments"), PLAYED)
def test_the_ids_of_a_frame_are_the_conversation_rendered_whole(family, template, arguments):
    tokenizer = bake(tokenizer_of(family), settings(template, arguments))
    chat = ChatFormat(tokenizer)
    ids = chat.first([Message(role="system", content="Rules."), Message(role="user", content="q0")])
    talk = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "q0"}]
    if family in ("gemma", "mistral"):  # the system text joins the first message
        talk = [{"role": "user", "content": "Rules.\n\nq0"}]
    space = " " if family == "mistral" else ""  # its models write it
    for number in range(2):
        talk.append({"role": "assistant", "content": f"a{number}"})
        talk.append({"role": "user", "content": f"q{number + 1}"})
        ids += tokenizer.encode(f"{space}a{number}", add_special_tokens=False)
        ids += chat.follow([Message(role="user", content=f"q{number + 1}")], ended=False)
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert text == tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert text.count("<think>") == text.count("</think>")


@pytest.mark.parametrize(("family", "template", "arguments", "complaint"), REFUSED)
def test_a_template_that_cannot_be_played_is_refused_with_the_settings_that_help(
    family, template, arguments, complaint
):
    with pytest.raises(PolicyError, match=complaint):
        bake(tokenizer_of(family), settings(template, arguments))


@pytest.mark.parametrize("ends", [False, True])
def test_a_tokenizer_without_a_template_or_an_end_of_turn_is_refused(ends: bool) -> None:
    bare = tokenizer_of("qwen2_5")
    bare.chat_template = bare.chat_template.replace("<|im_end|>", "") if ends else None
    with pytest.raises(PolicyError, match="special token" if ends else "no chat template"):
        bake(bare, settings("own", {}))
