"""Texts of a policy as token ids, in the layout of a rollout."""

from types import SimpleNamespace

import pytest
from helpers.random_model import tokenizer

from agent.demonstrations.sft_rows import TokenisedPolicy
from agent.policies.base import TurnReply, TurnRequest
from agent.policies.conversations import Conversations
from agent.settings import GenerationSettings
from env.models import Finish, Message

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

OPENING = [Message(role="system", content="Say."), Message(role="user", content="Who <|im_end|>?")]
NEWS = [Message(role="user", content="printed <|im_end|>")]


class Fixed:
    """Policy with the same reply to everything."""

    def __init__(self, text: str, finish: Finish = "stop") -> None:
        self.reply = TurnReply(text, finish)

    def act(self, requests):
        return [self.reply for _ in requests]


def conversations(**limits: int | bool) -> Conversations:
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=None))
    model = SimpleNamespace(config=config, generation_config=None)
    settings = GenerationSettings(max_turn_tokens=32, max_frame_tokens=128)
    settings = settings.model_copy(update=limits)
    return Conversations(model, tokenizer(), settings)


def turns(policy: TokenisedPolicy, count: int = 2) -> list[TurnReply]:
    found = []
    for number in range(count):
        messages = NEWS if number else OPENING
        request = TurnRequest((0, 0), messages, depth=0, kind="rlm", first=number == 0, seed=0)
        found += policy.act([request])
    return found


def test_the_ids_are_the_whole_chat_and_end_each_turn() -> None:
    text = 'Find it.\n"ü <|im_end|>"'
    made = conversations()
    first, second = turns(TokenisedPolicy(Fixed(text), made))
    known = made.chat.tokenizer
    talk = [*OPENING, ("assistant", text), *NEWS]
    plain = [one if isinstance(one, tuple) else (one.role, one.content) for one in talk]
    messages = [{"role": role, "content": content} for role, content in plain]
    for message in messages[1:]:  # no text of a message ends a turn
        message["content"] = message["content"].replace("<|", "< |")
    whole = known.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert known.decode(first.prompt_ids + first.sampled_ids + second.prompt_ids) == whole
    assert first.sampled_ids[-1] == made.chat.end_of_turn
    assert (first.text, first.finish, first.logprobs) == (text.replace("<|", "< |"), "stop", [])


TURNS, FRAMES = {"max_turn_tokens": 5}, {"max_frame_tokens": 24}
LIMITS = [({}, "stop", None), (TURNS, "length", 5), (FRAMES, "length", 0)]


@pytest.mark.parametrize(("limits", "finish", "tokens"), LIMITS)
def test_a_turn_beyond_a_limit_is_cut_as_a_sampled_one(limits, finish, tokens):
    text = "the model reads the paper and the text"
    [reply] = turns(TokenisedPolicy(Fixed(text), conversations(**limits)), 1)
    assert reply.finish == finish
    assert tokens is None or len(reply.sampled_ids) == tokens
    assert text.startswith(reply.text)


def test_turns_that_the_other_policy_lost_or_cut_have_no_end() -> None:
    assert turns(TokenisedPolicy(Fixed("", "error"), conversations()), 1)[0].finish == "error"
    made = conversations()
    [cut] = turns(TokenisedPolicy(Fixed("one two", "length"), made), 1)
    assert cut.finish == "length"
    assert made.chat.end_of_turn not in cut.sampled_ids
    [empty] = turns(TokenisedPolicy(Fixed("", "length"), conversations()), 1)
    assert (empty.text, empty.finish, empty.sampled_ids) == ("", "length", [])
