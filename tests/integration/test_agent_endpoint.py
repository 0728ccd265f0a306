"""The endpoint policy against a small OpenAI-compatible server."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers.fake_endpoint import FakeServer, serving

from agent.errors import PolicyError
from agent.policies.base import TurnRequest
from agent.policies.endpoint import EndpointPolicy
from agent.settings import GenerationSettings
from env.models import Message

SETTINGS = GenerationSettings(temperature=0.5, max_turn_tokens=32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


def policy_of(server: FakeServer, **changes: object) -> EndpointPolicy:
    return EndpointPolicy(server.url, "some-model", SETTINGS, **{"timeout_s": 10.0, **changes})


def ask(number: int, text: str, first: bool = True) -> TurnRequest:
    messages = [Message(role="user", content=text)]
    return TurnRequest((number, 0), messages, 0, "rlm", first, seed=2**40 + number)


def test_the_whole_conversation_is_sent_with_settings_and_seed_and_its_usage_priced(server):
    policy = policy_of(server)
    assert policy.act([ask(7, "abc")])[0].text == "cba"
    assert policy.act([ask(7, "def", first=False)])[0].text == "fed"
    first, second = server.bodies
    assert first["path"] == "/v1/chat/completions"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("some-model", 0.5, 32)
    assert first["seed"] == (2**40 + 7) % 2**31
    assert second["messages"] == [
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": "cba"},
        {"role": "user", "content": "def"},
    ]
    assert (policy.usage.requests, policy.usage.prompt_tokens) == (2, 20)
    assert policy.usage.cost(2.0, 10.0) == pytest.approx((20 * 2 + 6 * 10) / 1e6)


UNCUT = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}


@pytest.mark.parametrize(
    ("sampling", "sent"), [("full", UNCUT), ("openai", {"top_p": 1})], ids=["full", "openai"]
)
def test_no_server_may_choose_the_distribution(server, sampling, sent):
    policy = policy_of(server, sampling=sampling)
    policy.check()
    policy.act([ask(0, "abc")])
    for body in server.bodies:
        assert {key: body[key] for key in UNCUT if key in body} == sent
        assert "chat_template_kwargs" not in body


OWN = UNCUT.keys() - {"top_p"}
NO_LIMIT = {"message": "No. Use 'max_completion_tokens'.", "param": "max_tokens"}
NO_FIELD = [
    ("full", 400, {"message": "Unknown parameter: 'top_k'."}, OWN),
    ("openai", 400, NO_LIMIT, {"max_tokens"}),
    ("openai", 422, {"message": "body.seed: not permitted"}, {"seed"}),
    ("openai", 400, {"message": "no", "param": "temperature"}, {"temperature"}),
    ("openai", 400, {"message": "`temperature` and `top_p`: no"}, {"top_p"}),
]


@pytest.mark.parametrize(("sampling", "status", "error", "gone"), NO_FIELD)
def test_a_refused_field_is_left_out_from_then_on(server, sampling, status, error, gone, caplog):
    server.plan, server.error = [status], error
    policy = policy_of(server, sampling=sampling)
    assert policy.act([ask(0, "abc")])[0].text == "cba"
    policy.beside(threading.Event()).act([ask(1, "abc")])
    first, *others = server.bodies
    new = {"max_completion_tokens"} if "max_tokens" in gone else set()
    assert [other.keys() for other in others] == [(first.keys() - gone) | new] * 2
    assert [text.split()[2] for text in caplog.messages] == [f"{name}:" for name in gone - OWN]
    assert policy.usage.failures == 0


def test_a_limit_of_tokens_that_no_name_fits_goes_too(server):
    server.plan, server.error = [400, 400], {"message": "max_tokens, max_completion_tokens: no"}
    policy_of(server).check()
    assert not [name for name in server.bodies[-1] if name.startswith("max_")]


@pytest.mark.parametrize(
    ("plan", "said"), [([400], "does not support 'system'"), ([500] * 2, "roles must alternate")]
)
def test_a_template_without_a_system_gets_its_message_from_the_user(server, plan, said):
    server.plan, server.error = plan, {"message": said}
    policy = policy_of(server, attempts=len(plan))
    first = [Message(role="system", content="Be brief."), Message(role="user", content="abc")]
    policy.act([TurnRequest((0, 0), first, 0, "rlm", True, seed=1)])
    policy.act([ask(0, "def", first=False)])
    talk = server.bodies[-1]["messages"]
    assert [one["role"] for one in talk] == ["user", "assistant", "user"]
    assert talk[0]["content"] == "Be brief.\n\nabc"


def test_parallel_requests_return_replies_in_order(server):
    server.together = threading.Barrier(4)
    replies = policy_of(server, concurrency=4).act([ask(n, f"text{n}") for n in range(8)])
    assert [reply.text for reply in replies] == [f"text{n}"[::-1] for n in range(8)]
    assert server.most_in_flight == 4


REFUSED = [(400, "context holds 9"), (400, "too long"), (413, "Large"), (422, "max_new_tokens")]


@pytest.mark.parametrize(("status", "said"), [*REFUSED, (400, "content_filter")])
def test_a_conversation_that_is_refused_is_no_failure_of_the_endpoint(server, status, said):
    policy = policy_of(server)
    policy.act([ask(0, "abc")])
    server.plan, server.error = [status], {"message": said, "code": said}
    assert policy.act([ask(1, "abc")])[0].finish == "length"
    assert said in policy.cut


DEAD_ENDS = [
    (None, {}, "stop", "empty"),
    ("", {"reasoning_content": "Hm."}, "stop", "a thought alone"),
    ("<think>\n```repl\ndraft\n```", {}, "stop", "a thought alone"),
    ("I look.", {"tool_calls": [{"id": "1", "type": "function"}]}, "tool_calls", "a tool"),
    (None, {"refusal": "I won't."}, "stop", "I won't"),
    ("Half", {}, "content_filter", "filter"),
    ("Half", {}, "length", "max_turn_tokens"),
]


@pytest.mark.parametrize(("content", "beside", "finish", "why"), DEAD_ENDS)
def test_a_turn_that_ends_its_frame_tells_the_cause(server, content, beside, finish, why):
    server.reply, server.beside, server.finish = lambda body: content, beside, finish
    policy = policy_of(server)
    [turn] = policy.act([ask(0, "abc")])
    assert (turn.text, turn.finish) == (content or "", "length")
    assert why in policy.cut
    policy.act([ask(0, "def", first=False)])
    assert all(message["content"] for message in server.bodies[-1]["messages"])


def test_passing_failures_are_retried(server):
    server.plan = [0, 429, 500, 503]
    policy = policy_of(server)
    assert policy.act([ask(0, "abc")])[0].text == "cba"
    assert len(server.bodies) == 5
    assert policy.usage.failures == 0


def test_a_lasting_failure_is_an_error_turn_of_that_frame_only(server):
    server.plan = [500] * 3
    policy = policy_of(server, attempts=3, concurrency=1)
    replies = policy.act([ask(0, "abc"), ask(1, "def")])
    assert [reply.finish for reply in replies] == ["error", "stop"]
    assert len(server.bodies) == 4
    assert policy.usage.failures == 1


BUSY = b'"error": {"message": "No card is free."}'


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        *((raw, "") for raw in (b"<html>busy</html>", b"[]", b'{"choices": [{"message": 1}]}')),
        (b"[" * 200_000, ""),
        (b"{%s}" % BUSY, "No card is free."),
        (b'{"choices": [{"message": {"content": ""}, %s}]}' % BUSY, "No card is free."),
    ],
    ids=["page", "list", "no message", "deep", "error", "error of a choice"],
)
def test_a_body_that_is_not_a_completion_is_an_error_turn(server, raw, told):
    server.raw, policy = raw, policy_of(server)
    assert policy.act([ask(0, "abc")])[0].finish == "error"
    assert policy.trouble.endswith(told)


QUOTA = {"message": "You exceeded your current quota"}


LASTING = [
    *((status, {"message": "no"}, "OPENAI_API_KEY") for status in (401, 403, 404)),
    (429, QUOTA | {"code": "insufficient_quota"}, r"current quota.*Check .* the account"),
    (429, QUOTA | {"type": "insufficient_quota"}, r"current quota.*Check .* the account"),
    *((s, {"message": "No 'messages'"}, r"\(.*No 'messages'") for s in (400, 402, 422)),
]


@pytest.mark.parametrize(("status", "error", "told"), LASTING)
def test_what_waiting_cannot_mend_stops_at_once_in_the_endpoints_words(server, status, error, told):
    server.plan, server.error = [status], error
    with pytest.raises(PolicyError, match=told):
        policy_of(server).check()
    assert len(server.bodies) == 1


WRONG = [
    *((url, r"Use one such as http") for url in ("h/v1", "h:8000/v1", "http://h:port", "")),
    *((f"{at}me:sesame@host", "no user and no password") for at in ("http://", "")),
]


@pytest.mark.parametrize(("url", "told"), WRONG)
def test_a_wrong_address_is_refused_at_once_and_a_password_in_it_is_not_repeated(url, told):
    with pytest.raises(PolicyError, match=told) as caught:
        EndpointPolicy(url, "some-model", SETTINGS)
    assert "sesame" not in str(caught.value)


def test_the_key_is_in_no_message(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    server.plan, server.error = [500, 400, 401], {"message": "key sk-secret is no good"}
    policy = policy_of(server, attempts=1)
    policy.act([ask(0, "abc")])
    messages = [policy.trouble]
    for _ in range(2):
        with pytest.raises(PolicyError) as caught:
            policy.check()
        messages.append(str(caught.value))
        assert caught.value.__cause__ is None
    for text in messages:
        assert "key *** is no good" in text
        assert "secret" not in text


@pytest.mark.parametrize("key", ["sk-sécret", "sk-\u2026", "sk-a\nb"])
def test_a_key_that_no_header_can_carry_is_one_message(server, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(PolicyError, match="a character that no key has") as caught:
        policy_of(server)
    assert key not in str(caught.value)


ABSURD = {"prompt_tokens": 10**308, "completion_tokens": 10**308, "total_tokens": 0}


@pytest.mark.parametrize(("usage", "known"), [(None, False), (ABSURD, True)])
def test_an_answer_with_no_usage_or_an_absurd_one_is_not_lost(server, usage, known):
    server.usage, policy = usage, policy_of(server)
    assert policy.act([ask(0, "abc")])[0].text == "cba"
    assert (policy.usage.tokens != "tokens unknown") == known
    cost = policy.usage.cost(1.0, 1.0)
    assert cost < 10**12 if known else cost is None


def test_a_dead_endpoint_stops_the_run(server):
    policy = policy_of(server, attempts=1, concurrency=1)
    server.plan = [500] * 15 + [200] + [500] * 40
    replies = policy.act([ask(n, "abc") for n in range(16)])
    assert [reply.finish for reply in replies] == ["error"] * 15 + ["stop"]
    with pytest.raises(PolicyError, match=r"no more turns: 16 requests in a row .* 500 - no"):
        policy.act([ask(n, "abc") for n in range(100, 140)])
    assert len(server.bodies) == 32


SLOW = "its answer did not end within 0.5 s"
ENDLESS = {
    "body": (b" ", False, {"timeout_s": 0.5}, SLOW, 1),
    "headers": (b"a: b\r\n", True, {"timeout_s": 0.5}, SLOW, 1),
    "large": (b" " * 4_000_000, False, {}, "its answer has more than 16 MB", 1),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_an_answer_that_never_ends_is_cut_off(server, case):
    part, headers, options, told, tries = ENDLESS[case]
    server.endless, server.endless_headers = part, headers
    policy = policy_of(server, attempts=2, **options)
    began = time.monotonic()
    assert policy.act([ask(0, "abc")])[0].finish == "error"
    assert told in policy.trouble
    assert len(server.bodies) == tries
    assert time.monotonic() - began < 8.0


def test_an_interrupt_does_not_wait_for_requests_in_flight(server):
    server.pause_s = 8.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    main, began = threading.main_thread().ident, time.monotonic()

    def interrupt() -> None:
        while not server.bodies:
            time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        policy_of(server).act([ask(number, "abc") for number in range(3)])
    assert time.monotonic() - began < 6.0


def test_a_redirect_sends_no_question_to_another_host(server):
    with serving() as other:
        server.plan, server.headers = [307] * 9, {"location": f"{other.url}/chat/completions"}
        [turn] = policy_of(server, attempts=1).act([ask(0, "abc")])
        assert turn.finish == "error"
        assert other.bodies == []


def test_released_frames_are_forgotten(server):
    policy = policy_of(server)
    policy.act([ask(0, "abc")])
    policy.release([(0, 0)])
    with pytest.raises(KeyError):
        policy.act([ask(0, "def", first=False)])


FENCED = "I look.\n```repl\nprint(1)\n```"
READ = [
    *((f"I look.\n{fence}\nprint(1)\n```", FENCED) for fence in ("```py", "``` Python3", "```")),
    *((f"I look.\n{fence} py {{a=1}}\nprint(1)\n{fence}", FENCED) for fence in ("~~~", "````")),
    ("I look.\n```repl\nprint(1)```", FENCED),
    ('```py title="look"\r\nprint(1)\r\n```\r\n', "```repl\nprint(1)\n```\n"),
    *((f"{fence}\nFINAL(a)\n```", "```repl\nFINAL(a)\n```") for fence in ("```", "```{python}")),
    ("  ```python copy\n  a\n  ```", "```repl\na\n```"),
    ("FINAL_VAR(answer).", "FINAL_VAR(answer)"),
]
KEPT = [
    "```\nThe dose was 5 mg.\n```\nFINAL('5 mg')",
    "```python x = 1\nprint(x)\n```",
    "```python\na\n```\n```repl\nb\n```",
    "```json\n{}\n```",
]


@pytest.mark.parametrize(("written", "read"), [*READ, *zip(KEPT, KEPT, strict=True)])
def test_a_block_is_read_however_it_is_fenced(server, written, read):
    server.reply = lambda body: written
    policy = policy_of(server)
    assert policy.act([ask(0, "abc")])[0].text == read
    policy.act([ask(0, "def", first=False)])
    assert server.bodies[-1]["messages"][1]["content"] == written


def test_a_server_that_loads_its_model_has_a_minute(server, caplog):
    server.plan = [503] * 7
    policy = policy_of(server)
    policy.check()
    assert "loads its model" in caplog.text
    assert (policy.usage.failures, policy.trouble) == (0, "")
    server.plan = [503] * 11
    assert policy.act([ask(0, "abc")])[0].finish == "stop"


def test_a_long_pause_that_is_asked_for_is_told(server):
    server.plan, server.headers = [429, 429], {"Retry-After": "3600"}
    policy = policy_of(server, attempts=2)
    assert policy.act([ask(0, "abc")])[0].finish == "error"
    assert policy.trouble.startswith("Retry-After: 3600, ")
    server.plan = [429, 429]
    with pytest.raises(PolicyError, match="Ask again later"):
        policy.check()
