"""The long-context benchmark over a real environment: arms, resume, lost endpoints, the figure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fake_endpoint import serving as fake_serving
from helpers.untaught import untaught
from typer.testing import CliRunner

from agent.nano.settings import NanoSettings
from agent.policies.endpoint import EndpointPolicy
from benchmarks.oolong.__main__ import PLAN, keep, unpacked
from benchmarks.oolong.__main__ import play as play_benchmark
from benchmarks.oolong.stand_in import OolongStandIn
from flows.benchmark import app, tokens
from tasks import asking, evaluate
from tasks.errors import ConfigError, PipelineError, StageError
from tasks.oolong import play, players, report
from tasks.oolong.arms import TREE, scored
from tasks.oolong.expert import expert
from tasks.oolong.play import OolongPlan
from tasks.oolong.questions import problems
from tasks.oolong.results import ScoredAnswer, answer_file
from tasks.params import Params
from tasks.registry import serving

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.xdist_group("registry")  # so that one process imports MLflow


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch, server_url: str) -> None:
    """The session's server instead of one for each run; it has room for short contexts."""
    monkeypatch.setattr(serving, "own_server", lambda params: nullcontext(server_url))


@pytest.fixture
def stand_in() -> Iterator[OolongStandIn]:
    with OolongStandIn(0, 0.9) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield server
        server.shutdown()


def planned(out: Path, **changes: object) -> OolongPlan:
    plan = OolongPlan((1024, 2048), 8, (False, True), None, 0, out)
    return replace(plan, **changes)  # type: ignore[arg-type]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def run(
    plan: OolongPlan, model: str = "expert", base_url: str | None = None, sets: tuple = ()
) -> list[str]:
    said: list[str] = []
    with players.opened(model, base_url, sets, plan.lengths) as player:
        play.answer_all(player, plan, said.append)
    return said


def test_the_expert_answers_all_and_reads_only_where_no_label_is_printed(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    run(plan)
    found = rows(tmp_path / "expert.jsonl")
    assert len(found) == 2 * 2 * 8
    assert {row["score"] for row in found} == {1.0}
    assert {row["sub_calls"] > 0 for row in found if row["labels"]} == {False}
    assert {row["sub_calls"] > 0 for row in found if not row["labels"]} == {True}


def test_an_endpoint_is_asked_both_ways_and_its_bill_is_whole(
    tmp_path: Path, stand_in: OolongStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[EndpointPolicy] = []
    check = EndpointPolicy.check

    def checked(self: EndpointPolicy) -> None:
        check(self)
        policies.append(self)

    monkeypatch.setattr(EndpointPolicy, "check", checked)
    plan = planned(tmp_path, lengths=(1024,), window=512)
    said = run(plan, "m", stand_in.url, ("evaluate_model.prompt_price=1000",))
    found = rows(tmp_path / "m.jsonl")
    assert {row["arm"] for row in found} == {"tree", "plain-512"}
    assert {row["cut"] for row in found if row["arm"] == "plain-512"} == {True}
    assert {row["void"] for row in found} == {None}
    trees = [row["score"] for row in found if row["arm"] == "tree" and row["labels"]]
    assert trees == [1.0] * 8
    (policy,) = policies
    assert sum(row["requests"] for row in found) == policy.usage.requests - 1  # the check
    assert sum(row["prompt_tokens"] for row in found) <= policy.usage.prompt_tokens
    assert "32 questions follow" in said[0]
    assert "Their cost is about 56.58" in said[0]


def test_a_second_run_asks_nothing_and_a_larger_one_the_rest(tmp_path: Path) -> None:
    plan = planned(tmp_path, lengths=(1024,), labels=(False,))
    run(plan)
    before = (tmp_path / "expert.jsonl").read_bytes()
    assert run(plan) == [f"0 questions follow; {tmp_path / 'expert.jsonl'} has 8 answers."]
    assert (tmp_path / "expert.jsonl").read_bytes() == before
    run(replace(plan, count=16))
    after = (tmp_path / "expert.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(rows(tmp_path / "expert.jsonl")) == 16


def test_a_half_written_line_is_played_again(tmp_path: Path) -> None:
    plan = planned(tmp_path, lengths=(1024,), labels=(False,))
    run(plan)
    path = tmp_path / "expert.jsonl"
    text = path.read_text()
    path.write_text(text[:-30])
    assert run(plan)[0].startswith("Continues. 1 questions follow;")
    assert path.read_text().count("\n") == text.count("\n")
    assert len(rows(path)) == 8


def test_a_killed_run_keeps_its_answers_and_the_next_continues(
    tmp_path: Path, stand_in: OolongStandIn
) -> None:
    out, slow = tmp_path / "out", stand_in.answer

    def answer(messages: list[dict[str, str]]) -> str:
        time.sleep(0.05)
        return slow(messages)

    stand_in.answer = answer  # type: ignore[method-assign]
    words = ["--base-url", stand_in.url, "--model", "m", "--lengths", "1k", "--problems", "24"]
    words += ["--labels", "with", "--out", str(out), "--window", "4k"]
    words += ["--set", "evaluate_model.concurrency=1"]
    command = [sys.executable, "-m", "flows.benchmark", "oolong", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    path = out / "m.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 6:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert 6 <= len(kept) < 49
    sets = ("evaluate_model.concurrency=1",)
    plan = OolongPlan((1024,), 24, (True,), 4096, 0, out)
    said = run(plan, "m", stand_in.url, sets)
    assert said[0].startswith(f"Continues. {48 - len(kept) + 1} questions follow;")
    found = rows(path)
    assert path.read_text().startswith("".join(kept))
    assert len({(row["problem_id"], row["arm"]) for row in found}) == len(found) == 48


def test_an_endpoint_that_dies_keeps_the_answers_and_says_how_to_continue(
    tmp_path: Path, stand_in: OolongStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, lengths=(1024,), labels=(True,), count=16)
    answer, calls = stand_in.answer, []

    def dying(messages: list[dict[str, str]]) -> str:
        calls.append(1)
        if len(calls) > 5:
            raise ValueError("gone")
        return answer(messages)

    monkeypatch.setattr(stand_in, "answer", dying)
    quick: Callable[..., EndpointPolicy] = EndpointPolicy

    def impatient(*args: object, **kwargs: object) -> EndpointPolicy:
        return quick(*args, **kwargs, attempts=1, gone_after=3)  # type: ignore[arg-type]

    monkeypatch.setattr(players, "EndpointPolicy", impatient)
    monkeypatch.setattr(players.OolongPlayer, "endpoint", property(lambda self: self.policy))
    sets = ("evaluate_model.concurrency=1",)
    # The check and four answers, then three lost requests.
    with pytest.raises(StageError, match=r"answers so far are in .*m\.jsonl; the same command"):
        run(plan, "m", stand_in.url, sets)
    assert [row["void"] for row in rows(tmp_path / "m.jsonl")][:4] == [None] * 4
    monkeypatch.setattr(stand_in, "answer", answer)
    run(plan, "m", stand_in.url, sets)
    found = {row["problem_id"]: row for row in rows(tmp_path / "m.jsonl")}
    assert [row["score"] for row in found.values()] == [1.0] * 16


def test_an_endpoint_that_refuses_stops_before_any_answer(tmp_path: Path) -> None:
    with fake_serving() as fake:
        fake.plan = [401]
        with pytest.raises(StageError, match="OPENAI_API_KEY"):
            run(planned(tmp_path / "out"), "m", fake.url)
    assert not (tmp_path / "out").exists()


def test_nonsense_answers_score_zero_and_are_not_lost(tmp_path: Path) -> None:
    with fake_serving() as fake:
        fake.reply = lambda body: "```repl\nFINAL('I do not know')\n```"
        plan = planned(tmp_path, lengths=(1024,), labels=(False,))
        run(plan, "m", fake.url)
    assert [row["score"] for row in rows(tmp_path / "m.jsonl")] == [0.0] * 8


def test_answers_of_other_settings_are_refused(tmp_path: Path, stand_in: OolongStandIn) -> None:
    plan = planned(tmp_path, lengths=(1024,), labels=(True,))
    run(plan, "m", stand_in.url)
    with pytest.raises(ConfigError, match=r"other settings: .*sampling.*--out"):
        run(plan, "m", stand_in.url, ("evaluate_model.sampling=openai",))


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with (
        answer_file(path, {"model": "m"}),
        pytest.raises(StageError, match="another run writes"),
        answer_file(path, {"model": "m"}),
    ):
        pass


@pytest.mark.parametrize("line", ["{", "[]", '{"problem_id": "x"}'])
def test_a_file_of_other_content_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"model": "m"}}\n{line}\n')
    with (
        pytest.raises(ConfigError, match="line 2: not an answer"),
        answer_file(path, {"model": "m"}),
    ):
        pass


@pytest.mark.parametrize("text", ['{"mine": 1}\n{"mine": 2}', '{"mine": 1}', '{"mo', "\udcff", "x"])
def test_a_file_of_other_content_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="--out"), answer_file(path, {"name": "m"}):
        pass
    assert path.read_bytes() == before


def test_a_half_written_first_line_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"model')
    with answer_file(path, {"model": "m"}):
        pass
    assert path.read_text() == '{"model": "m"}\n'


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = r"out/m.jsonl cannot be written \(Not a directory\). Choose another folder"
    path = tmp_path / "file/out/m.jsonl"
    with pytest.raises(StageError, match=told), answer_file(path, {"model": "m"}):
        pass


def test_a_model_of_the_made_up_world_cannot_read_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_params: Params
) -> None:
    untaught(NanoSettings()).tokenizer.save_pretrained(tmp_path / "model")
    stored = asking.AskedModel("nano", server_params, tmp_path / "model")
    monkeypatch.setattr(asking, "stored", lambda model: stored)
    with pytest.raises(StageError, match="nano cannot read these documents"):
        run(planned(tmp_path / "out"), "champion")


def test_a_stored_model_plays_with_its_own_settings_and_room_for_the_longest_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_params: Params
) -> None:
    stored = asking.AskedModel("rlm version 7", server_params, tmp_path / "model")
    monkeypatch.setattr(asking, "stored", lambda model: stored)
    monkeypatch.setattr(evaluate, "load_policy", lambda folder, generation: expert(64))
    plan = planned(tmp_path, lengths=(1024,), labels=(False,))
    with players.opened("champion", None, (), (1024, 131_072)) as player:
        assert player.params.env.prompt_style == server_params.env.prompt_style
        assert player.params.env.limits.max_frames == 512
        assert player.params.env.document_chars > 131_072 * 4
        play.answer_all(player, plan, print)
    assert [row["score"] for row in rows(tmp_path / "rlm-version-7.jsonl")] == [1.0] * 8


def test_report_has_each_model_with_intervals_and_a_figure(
    tmp_path: Path, stand_in: OolongStandIn
) -> None:
    plan = planned(tmp_path, window=1024, count=16)
    run(plan, "m", stand_in.url)
    run(replace(plan, window=None))
    play.answer_baselines(plan)
    scores = report.read_scores(plan)
    names = ["expert, recursive", "m, plain (1k window)", "m, recursive"]
    assert list(scores[False]) == [*names, "frequent", "keywords", "no reading", "random"]
    for of_labels in scores.values():
        for series in of_labels.values():
            assert list(series) == [1024, 2048]
            assert all(cell.score.n == 16 for cell in series.values())
    cut = scores[False]["m, plain (1k window)"]
    assert cut[2048].cut
    assert scores[True]["expert, recursive"][2048].score.mean == 1
    summary, table, figure = report.write_report(plan, scores)
    assert json.loads(summary.read_text())["without labels"]["m, recursive"]["1k"]["n"] == 16
    assert "| 2k | 1.00 (1.00 to 1.00)" in table.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_one_command_makes_all_figures_and_its_answers_can_be_kept(tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    plan = replace(PLAN, lengths=(1024,), count=8, out=out)
    play_benchmark(plan)
    before = {path.name: path.read_bytes() for path in out.glob("*.jsonl")}
    assert set(before) == {"expert.jsonl", "stand-in-90.jsonl", play.BASELINE_FILE}
    play_benchmark(plan)
    assert {path.name: path.read_bytes() for path in out.glob("*.jsonl")} == before
    keep(out, tmp_path / "kept")
    again.mkdir()
    assert unpacked(tmp_path / "kept", replace(plan, out=again)) == report.read_scores(plan)


def test_no_model_has_the_file_of_the_baselines(tmp_path: Path, server_params: Params) -> None:
    name = Path(play.BASELINE_FILE).stem
    player = players.OolongPlayer(name, expert(1), server_params, 1)
    assert f"{player.file_name}.jsonl" != play.BASELINE_FILE


def test_problems_of_the_plan_alone_are_reported(tmp_path: Path) -> None:
    run(planned(tmp_path, lengths=(1024,), labels=(False,), count=16))
    scores = report.read_scores(planned(tmp_path, labels=(False,)))
    assert scores[False]["expert, recursive"][1024].score.n == 8
    assert next(iter(problems(0, 1024, 8, False))).context_id == "1024-0"


def kept(path: Path, *answers: ScoredAnswer) -> None:
    with answer_file(path, {"model": path.stem}) as file:
        for answer in answers:
            file.add(answer)


def test_tokens_are_a_mean_over_all_that_were_played(tmp_path: Path) -> None:
    asked = list(problems(0, 1024, 16, labels=False))
    late = [scored(one, TREE, one.gold, prompt_tokens=0) for one in asked[1:]]
    kept(tmp_path / "m.jsonl", scored(asked[0], TREE, "", prompt_tokens=1600), *late)
    plan = planned(tmp_path, lengths=(1024,), labels=(False,))
    cell = report.read_scores(plan)[False]["m, recursive"][1024]
    assert (cell.score.n, cell.tokens) == (8, 100)


def test_the_bill_of_a_lost_answer_is_kept_when_it_is_repeated(tmp_path: Path) -> None:
    first, second = problems(0, 1024, 2, labels=False)
    lost = scored(first, TREE, None, void="lost", prompt_tokens=150)
    answers = scored(second, TREE, second.gold), scored(first, TREE, "", prompt_tokens=50)
    kept(tmp_path / "m.jsonl", lost, *answers)
    plan = planned(tmp_path, lengths=(1024,), labels=(False,))
    assert report.read_scores(plan)[False]["m, recursive"][1024].tokens == 100


def test_a_half_written_line_of_another_model_does_not_stop_the_report(tmp_path: Path) -> None:
    (asked,) = problems(0, 1024, 1, labels=False)
    kept(tmp_path / "killed.jsonl", scored(asked, TREE, asked.gold))
    with (tmp_path / "killed.jsonl").open("a") as file:
        file.write('{"problem_id": "1024')
    scores = report.read_scores(planned(tmp_path, lengths=(1024,), labels=(False,)))
    assert scores[False]["killed, recursive"][1024].score.n == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "1k,many"], "'many' is not a length"),
        (["--lengths", "100"], "'100' is not a length"),
        (["--window", "4k"], "--window is for endpoints"),
        (["--set", "threads=1"], "--set is for endpoints"),
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url needs --model"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--set", "x.y=1"], "x"),
        (["--base-url", "ftp://x", "--model", "m"], "not an endpoint's address"),
    ],
)
def test_wrong_options_stop_with_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["oolong", "--out", str(tmp_path / "out"), *words])
    assert result.exit_code in (1, 2)
    assert not isinstance(result.exception, PipelineError)
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_lengths_are_read() -> None:
    assert (tokens("4k"), tokens(" 1024 "), tokens("128K")) == (4096, 1024, 131_072)
