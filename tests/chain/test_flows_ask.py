"""`flows.ask`: a registered model on the user's own files.

A scripted expert stands for the champion's weights; documents, environment and registry are real.
"""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import fake_endpoint, looms
from helpers.changed import write_params
from helpers.registry import SCRIPTS, add_version
from helpers.untaught import untaught
from typer.testing import CliRunner

from agent.nano.sizes import NanoSettings
from agent.policies.base import Policy
from agent.policies.scripted import Scripted
from agent.settings import GenerationSettings
from env.problems.fields import field_of
from env.problems.schema import tier_of
from flows import ask, cli
from flows.ask import HINT, NO_EVIDENCE
from tasks import asking, config, evaluate
from tasks.config.params import Params
from tasks.registry import champions, versions
from tasks.reporting import progress

pytestmark = pytest.mark.xdist_group("registry")  # so that one process imports MLflow

PAPERS = looms.ROOT / "examples/nano_papers"
QUESTION = "How well does Jedkuf do on code?"


@pytest.fixture
def folder(tmp_path, monkeypatch, server_params, server_url, mlflow_store) -> Path:
    """A working folder with an empty registry; weights are the name of a scripted policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asking, "installed", lambda: False)
    write_params(server_params)

    def load(path: Path, generation: GenerationSettings) -> Policy:
        return SCRIPTS[(path / "model.safetensors").read_text()]()

    # The session's server instead of one for each question.
    monkeypatch.setattr(asking, "local_server", lambda *_: nullcontext(server_url))
    monkeypatch.setattr(evaluate, "load_policy", load)
    return tmp_path


def registered(script: str, params: Params) -> Any:
    """A version whose weights name a scripted policy."""
    version = add_version(script)
    config.write_resolved(params).rename(Path(version.source, "artifacts", config.RESOLVED))
    write_params(params)
    return version


def asked(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli.app, ["ask", *arguments])
    return done.exit_code, done.stdout, done.stderr


def found(told: str) -> set[tuple[str, str]]:
    return {(quote["document"], quote["text"]) for quote in json.loads(told)["evidence"]}


def test_the_champion_answers_and_after_a_rollback_its_predecessor_does(folder, server_params):
    champions.crown(registered("silent", server_params), instead_of=None)
    arguments = ("--docs", str(PAPERS), QUESTION, "--json")
    code, before, told = asked(*arguments)
    assert code == NO_EVIDENCE, told
    champions.crown(registered("expert", server_params), instead_of=versions.champion("rlm"))
    _, after, _ = asked(*arguments)
    _, table, _ = asked("--docs", str(PAPERS), QUESTION)
    # All sentences of the field, as the example's documents hold them; and their places.
    gold = {
        (path.name, line)
        for path in PAPERS.iterdir()
        for line in path.read_text().splitlines()
        if "Jedkuf" in line and field_of(line, 512) == "code"
    }
    assert tier_of(len(gold)) == "mid_range"
    assert found(after) == gold
    for quote in json.loads(after)["evidence"]:
        text = (PAPERS / quote["document"]).read_text()
        assert text[quote["start"] : quote["end"]] == quote["text"]
        assert f"{quote['document']}, characters {quote['start']}-{quote['end']}\n" in table
    assert found(before) == set()
    champions.rollback("rlm", None)
    _, again, _ = asked(*arguments)
    assert found(again) == found(before)


@pytest.mark.parametrize("command", ["ask", "mcp", "evaluate"])
def test_an_address_with_a_password_is_refused_and_not_repeated(command: str) -> None:
    docs = [] if command == "evaluate" else ["--docs", "."]
    words = [command, *docs, "--model", "m", "--base-url", "http://me:sesame@host/v1"]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 2
    assert "has no user and no password" in done.stderr
    assert "sesame" not in done.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--docs", str(PAPERS), QUESTION, "--model", "7"), "no version '7'"),
        (("--docs", str(PAPERS), QUESTION, "--model", "models:/other/7"), "other has no version"),
        (("--docs", "nowhere", QUESTION, "--model", "."), "no such folder"),
        (("--docs", "a.txt", QUESTION), "is a file"),
        (("--docs", "empty"), "write one question"),
        (("--docs", "empty", QUESTION, "--base-url", "http://x/v1"), "needs --model"),
        (("--docs", "empty", QUESTION, "--set", "env.limits.max_turns=2"), "is for endpoints"),
        (("--docs", "empty", QUESTION, "--model", "."), "no document"),
        (("--docs", str(PAPERS), " ", "--model", "."), "the question is empty"),
    ],
)
def test_what_cannot_be_asked_is_one_message(folder, arguments, word):
    (folder / "empty").mkdir()
    (folder / "empty/budget.xlsx").touch()
    (folder / "a.txt").touch()
    code, _, errors = asked(*arguments)
    assert code == 1
    assert word in " ".join(errors.split())


@pytest.mark.parametrize("crowned", ["", "spells every letter", "knows the words"])
def test_passages_are_ranked_where_no_champion_reads(folder, server_params, crowned, monkeypatch):
    if crowned == "knows the words":
        monkeypatch.setattr(asking, "SMALL_VOCABULARY", 0)
    if crowned:
        version = registered("expert", server_params)
        untaught(NanoSettings()).tokenizer.save_pretrained(Path(version.source) / versions.ARTIFACT)
        champions.crown(version, instead_of=None)
    docs = folder / "notes"
    docs.mkdir()
    text = "Search music, video, audio, speech and vision.\n\nThe looms arrive on 14 May.\n"
    (docs / "orders.md").write_text(text)
    code, told, errors = asked("--docs", str(docs), "When do the looms arrive?", "--json")
    assert code == 0, errors
    [quote] = json.loads(told)["evidence"]
    assert text[quote["start"] : quote["end"]] == "The looms arrive on 14 May."
    assert json.loads(told)["model"] == "search by BM25 (no model)"
    said = "version 1 learnt from made-up problems" if crowned else "no champion yet"
    assert f"{said}: passages are ranked" in errors
    code, told, _ = asked("--docs", str(docs), "Who won?")
    assert code == NO_EVIDENCE
    assert "No passage shares a word" in told
    assert "read by no model" in told
    if crowned == "spells every letter":  # but it knows the words of its own world
        _, told, _ = asked("--docs", str(PAPERS), QUESTION, "--json")
        assert json.loads(told)["model"] == "rlm version 1"


@pytest.mark.parametrize(("question", "code"), [(QUESTION, 0), ("Wozu?", NO_EVIDENCE)])
def test_a_mute_champion_leaves_ranked_passages(folder, server_params, question, code, monkeypatch):
    monkeypatch.setitem(SCRIPTS, "mute", lambda: Scripted(lambda seen: "Hm."))
    champions.crown(registered("mute", server_params), instead_of=None)
    found, told, errors = asked("--docs", str(PAPERS), question, "--json")
    assert (found, json.loads(told)["model"]) == (code, "search by BM25 (no model)")
    assert "rlm version 1: The model gave no answer; its episode ended with" in errors
    assert bool(json.loads(told)["evidence"]) == (not code)


@pytest.mark.parametrize(("cosine", "code"), [(0.46, 0), (0.44, NO_EVIDENCE)])
def test_an_installed_model_ranks_by_meaning_or_else_by_words(folder, cosine, code, monkeypatch):
    class Meaning:
        def scores(self, question: str, texts: list[str]) -> list[float]:
            return [cosine if "looms" in text else 0.1 for text in texts]

        def order(self, question: str, texts: list[str]) -> list[int]:
            return sorted(range(len(texts)), key=lambda place: "looms" not in texts[place])

    monkeypatch.setattr(asking, "installed", lambda: True)
    monkeypatch.setattr(asking, "embedder", Meaning)
    (folder / "orders.md").write_text("Heating is off.\n\nThe looms arrive on 14 May.\n")
    found, told, _ = asked("--docs", ".", "Deliveries?", "--json")
    assert found == code
    assert ("No passage is close" in asked("--docs", ".", "Deliveries?")[1]) == bool(code)
    words = json.loads(asked("--docs", ".", "When do the looms arrive?", "--json")[1])
    assert words["evidence"]
    assert words["model"] == f"search by {'BM25' if code else 'all-MiniLM-L6-v2'} (no model)"
    quotes = [quote["text"] for quote in json.loads(told)["evidence"]]
    assert quotes[:1] == ([] if code else ["The looms arrive on 14 May."])
    assert json.loads(told)["model"] == "search by all-MiniLM-L6-v2 (no model)"


def test_a_redirected_quote_is_the_files_and_the_time_the_commands(folder, monkeypatch):
    clock = iter([100.0, 104.2])
    monkeypatch.setattr(ask, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    text = f"Looms\tarrive  on 14 May, {'in a long row, ' * 12}and are set up."
    (folder / "orders.md").write_text(f"{text}\n")
    _, told, _ = asked("--docs", ".", "When do the looms arrive?")
    assert f"\n{text}\n\n" in told
    assert " s (4.2 s in all)\n" in told


@pytest.mark.parametrize("words", [["When", "do", "they?"], ["-in May?"], ["--jsn", "When?"]])
def test_words_that_the_shell_has_split_get_a_hint(words: list[str]) -> None:
    done = CliRunner().invoke(cli.app, ["ask", "--docs", ".", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert (HINT in done.stderr) == (words[0] != "--jsn")


def test_a_question_comes_from_the_input_and_may_begin_with_a_dash(folder: Path) -> None:
    (folder / "orders.md").write_text("The looms arrive on 14 May.\n")
    words = ["ask", "--docs", ".", "--json"]
    for more, typed in (["-"], "\n- When do the\nlooms arrive?\n"), (["--", "-looms?"], ""):
        done = CliRunner().invoke(cli.app, [*words, *more], input=typed)
        assert json.loads(done.stdout)["question"] == (typed.strip() or more[1])
        assert done.exit_code == 0


def test_quotes_and_errors_do_not_control_the_terminal(folder: Path) -> None:
    evil = "The looms\x1b]52;c;cm0gLXJm\x07 arrive\u202e on 14 May.\n"
    (folder / "orders\u202etxt.md").write_text(evil)
    (folder / "bad\x1b[2J.pdf").write_bytes(b"no PDF")
    code, told, errors = asked("--docs", ".", "When do the looms arrive?")
    assert code == 0, errors
    assert set("\x1b\x07\u202e").isdisjoint(told + errors)
    assert r"\x1b]52" in told
    assert r"orders\u202etxt.md" in "".join(told.split())


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in English, beside the project's settings."""
    texts = {"orders.md": "# Orders\nThe looms arrive on 14 May.\n", "garden.txt": "It is spring."}
    monkeypatch.chdir(looms.written(tmp_path, texts))


def test_an_endpoint_does_not_control_the_terminal(notes: None) -> None:
    with fake_endpoint.serving() as fake:
        fake.plan, fake.error = [401], {"message": "no\x1b]52;c;cm0gLXJm\x07"}
        named = ("--base-url", fake.url, "--model", "m")
        code, told, errors = asked("--docs", "notes", "When do the looms arrive?", *named)
    assert (code, r"\x1b]52" in errors) == (1, True)
    assert "\x1b" not in told + errors


def test_an_endpoint_answers_line_by_line_without_torch_and_mlflow(notes: None) -> None:
    code = (
        "import sys\nfrom flows.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print([m for m in ('torch', 'mlflow', 'pandas') if m in sys.modules])"
    )
    with fake_endpoint.serving() as fake:
        fake.reply = looms.scripted_reply
        words = ["--docs", "notes", "--base-url", fake.url, "--model", "m"]
        asking = ["--interactive", "--set", "evaluate_model.prompt_price=1000"]
        done = subprocess.run(
            [sys.executable, "-c", code, "ask", *words, *asking],
            input=f"{looms.QUESTION}\n\n{'?' * 9999}\n \n{looms.QUESTION}",
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nThe looms arrive on 14 May.\n\n") == 2
    assert "2 documents, 2 turns, 1 sub-call, depth 1, " in done.stdout
    assert "2 requests, 20 + 6 tokens, cost 0.0200" in done.stdout
    assert "the question has 9999 characters" in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_endpoint_that_only_thinks_ends_at_once_and_says_why(notes, monkeypatch):
    for name in ("FIRST_S", "POLL_S"):
        monkeypatch.setattr(progress, name, 0.01)
    with fake_endpoint.serving() as fake:
        fake.pause_s = 0.2
        fake.reply = lambda body: "<think>The looms?</think>\n"
        named = ("--base-url", fake.url, "--model", "m")
        code, told, errors = asked("--docs", "notes", looms.QUESTION, *named)
        assert len(fake.bodies) == 2  # the test question, and the root's turn
    assert code == 1
    assert "ended with 'truncated' (its turn holds a thought alone)" in " ".join(told.split())
    for what in ("loading m", "asking m about 2 documents"):
        assert f"{what}, a few seconds so far\n" in errors


def test_a_model_that_ranks_by_meaning_is_not_asked_where_nothing_is_close(monkeypatch):
    monkeypatch.setattr(asking, "by_meaning", lambda documents, question, most: [])
    params = Params(env={"rank": "minilm"})
    asked = asking.play_question(object(), "http://nowhere.invalid", params, "Why?", {"a": "A."})
    assert asking.verdict(asked).startswith("No passage")
