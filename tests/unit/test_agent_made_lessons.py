from __future__ import annotations

from random import Random

import numpy as np
import pytest

from agent.made.lessons import MadeLessons, TalkEncoder, asking, reader_task
from agent.made.tokenizer import NUMBERS, TEMPLATE, build_tokenizer
from agent.policies.base import TurnRequest
from agent.policies.chat_template import ChatFormat
from agent.policies.demonstrator import Demonstrator
from env.models import Message, ProblemCard
from env.problems import names
from env.problems.fields import read_question, write_collection
from env.problems.lexicon import FIELDS
from env.problems.settings import SyntheticSettings
from env.settings import EnvSettings

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it
LEXICON = 256


@pytest.fixture(scope="module")
def lessons():
    return MadeLessons(LEXICON, seed=0)


@pytest.fixture(scope="module")
def tokenizer(lessons):
    return build_tokenizer(lessons.corpus(), list(lessons.fields))


def pieces(tokenizer, text):
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


def test_numbers_fields_and_benchmarks_have_one_token_wherever_they_are(tokenizer, lessons):
    name = lessons.taught[0]
    for number in NUMBERS:
        assert str(number) in pieces(
            tokenizer, f"\n{number} Kalvot gets {number} points on {name}."
        )
    for field in FIELDS:
        for text in (
            f"Report Kalvot on {field}.",
            f"How good is it on {field}? N",
            f"On {field}, ",
        ):
            assert field in pieces(tokenizer, text)
    assert name in pieces(tokenizer, f"comes to 12 on {name}.\n")


def test_a_method_has_two_tokens(tokenizer):
    for name in names.NAMES[::40]:
        assert [name[:3], name[3:]] == [
            piece for piece in pieces(tokenizer, f'search(context, "{name}")') if piece in name
        ]


def test_it_has_the_template_of_qwen3_which_keeps_earlier_turns(tokenizer):
    chat = ChatFormat(tokenizer)  # refuses a template that rewrites them
    assert chat.end_of_turn == tokenizer.eos_token_id
    assert tokenizer.decode([chat.end_of_turn]) == "<|im_end|>"
    system, user = Message(role="system", content="S"), Message(role="user", content="U")
    shown = tokenizer.decode(chat.first([system, user]))
    assert shown == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    assert TEMPLATE.startswith("qwen3_instruct")


def test_a_lesson_has_the_ids_of_a_rollout_and_a_loss_on_its_turns_only(tokenizer, lessons):
    talk = lessons.root(Random(1), "look")
    example = TalkEncoder(tokenizer).encode(talk)
    chat = ChatFormat(tokenizer)
    ids, written = chat.first(talk.opening), []
    for place, turn in enumerate(talk.turns):
        if place:
            message = Message(role="user", content=talk.observed[place - 1])
            ids = ids + chat.follow([message], ended=True)
        written += range(len(ids), len(ids) + len(chat.completion(turn)))
        ids = ids + chat.completion(turn)
    assert example.ids.tolist() == ids
    assert np.flatnonzero(example.weights).tolist() == written


def test_a_drill_has_no_loss_before_the_word_that_begins_to_ask(tokenizer, lessons):
    talk = lessons.root(Random(1), "readers")
    encoder = TalkEncoder(tokenizer)
    example = encoder.encode(talk)
    encoder.mask_choice(example)
    counted = tokenizer.decode(example.ids[example.weights > 0])
    code = talk.turns[1].removeprefix("```repl\ntask ")
    assert counted == f"{code}<|im_end|>"


def test_no_lesson_holds_an_untaught_name(lessons):
    rng = Random(0)
    texts = [lessons.reader(rng).opening[1].content for _ in range(300)]
    assert not any(name in text for name in lessons.unseen for text in texts)
    assert any(lessons.taught[0] in text for text in texts) or len(lessons.taught) > 100


def test_the_demonstrator_asks_readers_as_lessons_do():
    (problem, *_) = write_collection(SyntheticSettings(lexicon=LEXICON), "train", "easy", 0)
    env = EnvSettings(prompt_style="compact")
    demonstrator = Demonstrator([problem], env)
    method, _ = read_question(problem.question)
    lesson = asking(problem.question, method, len(problem.papers))
    card = ProblemCard(
        problem_id=problem.problem_id,
        collection_id=problem.collection_id,
        difficulty="easy",
        split="train",
        papers=len(problem.papers),
    )
    first = TurnRequest((0, 0), lesson.opening, 0, "root", first=True, seed=0, problem=card)
    observed = [Message(role="user", content=lesson.observed[0])]
    second = TurnRequest((0, 0), observed, 0, "root", first=False, seed=0)
    shown = [reply.text for request in (first, second) for reply in demonstrator.act([request])]
    assert shown == lesson.turns

    lines, asked = [span.text for span in problem.candidates], []
    code = shown[1].removeprefix("```repl\n").removesuffix("\n```")
    stand_ins = {"llm_query_batched": lambda texts: asked.extend(texts) or [], "FINAL": list}
    exec(code, {"lines": lines, **stand_ins})
    assert asked[1] == reader_task(problem.question, range(4, 8), lines[4:8])
