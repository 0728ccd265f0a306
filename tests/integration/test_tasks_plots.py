"""Figures and report from files of the shapes that the stages write."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import browser
from helpers.recorder import recorded
from matplotlib.image import imread

from agent.evaluation import report
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from env.models import AnswerMetrics, Counters
from rewards.settings import reward_metric
from tasks import paths, plots
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.reporting import figures, html, learnt

PARAMS = Params()


OF_LEVELS = {"easy": {"reward_mean": 0.4}, "medium": {"reward_mean": 0.2}}
BARE: dict[str, Any] = {"played": True, "level": "easy", "reward_mean": 0.07}
BARE["advice"] = "too little (easy: 1 of 10 episodes earn)"
BASELINE = {"reward_mean": 0.31, "levels": OF_LEVELS}
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def train_table() -> pd.DataFrame:
    steps = np.arange(1, 13)
    table = pd.DataFrame({"step": steps, "level": ["easy"] * 5 + ["medium"] * 7})
    for name in ("reward", "primary_objective"):
        table[reward_metric(name)] = steps / 20
    return table


def episode(problem: str, score: float) -> Trajectory:
    level = problem.split("-")[0]
    turn = TurnRecord(f"Question {HOSTILE}", f"```repl\nFINAL({HOSTILE!r})\n```", "stop", [1], [2])
    played = Trajectory(problem, level, problem, "focused" if level == "easy" else "wide_net")
    frames = ((0, None, 0, "rlm"), (1, 0, 1, "rlm"), (2, 1, 2, "llm"))
    played.frames = {frame[0]: FrameRecord(*frame, [turn], "final") for frame in frames}
    played.reward = score
    played.components = dict.fromkeys(report.COMPONENTS, score)
    played.metrics = AnswerMetrics(precision=score, recall=score, f1=score)
    played.counters = Counters(turns=3, sub_calls=2, frames=3, max_depth=2)
    return played


@pytest.fixture
def folder(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with every input of the stage."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(inputs, tmp_path / "reports")
    return tmp_path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of the earlier stages."""
    problems = [f"{level}-{i}" for level in ("easy", "hard") for i in range(4)]
    scores = {"before": 0.3, "after": 0.8}
    rows: dict[str, list[report.EpisodeRow]] = {"before": [], "after": []}
    lines = []
    for model, score in scores.items():
        for index, problem in enumerate(problems):
            played = episode(problem, score + index / 100)
            for mode in ("greedy", "sampled"):
                rows[model].append(report.episode_row(played, model, mode))
            lines.append(report.transcript(played, model, "greedy"))
    told = report.compare_models(rows, {"before": [1.0], "after": [2.0]}, Bootstrap(200, 0))
    told |= {"reward_mode": "sampled"}
    gate = {"advice": "open (easy: 3 of 10 episodes earn)"}
    files = {"evaluation": told, "baseline": BASELINE, "zeroshot": BARE, "gate": gate}
    reports = tmp_path_factory.mktemp("inputs")
    train_table().to_parquet(reports / "train.parquet")
    for name, content in files.items():
        (reports / f"{name}.json").write_text(json.dumps(content))
    (reports / "transcripts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return reports


def test_the_stage_writes_two_figures_and_a_page_without_links_or_a_models_markup(folder):
    assert len(recorded(plots, PARAMS).artifacts) == 3
    names = ["before_after", "reward_curve"]
    assert sorted(p.stem for p in paths.PLOTS.iterdir()) == names
    for name in names:
        pixels = imread(paths.PLOTS / f"{name}.png")
        assert pixels.shape[1] >= 800  # wide enough for the README
        assert pixels[..., :3].std() > 0.05  # and not blank
    text = plots.PAGE.read_text()
    assert BARE["advice"] in text
    assert "3 of 10 episodes earn" in text
    assert text.count("<img") == 2
    references = set(re.findall(r"""(?:src|href)=["']([^"']*)""", text))
    references.remove("problems.html")  # a link, for readers on disk
    assert all(ref.startswith(("#", "data:image/png;base64,")) for ref in references)
    # What a model wrote is no markup.
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "may be chance" not in text
    assert "Void episodes" not in text


@pytest.mark.skipif(browser.BINARY is None, reason="needs Chromium")
def test_a_phone_shows_figures_in_boxes_that_scroll_and_large_enough_to_read(folder):
    recorded(plots, PARAMS)
    sizes = """new Promise(done => {
        const phone = document.createElement("iframe");
        phone.style = "border: 0; width: 390px";
        phone.onload = () => done(["html", "figure", "figure + figure"].map(box => {
            const {clientWidth, scrollWidth} = phone.contentDocument.querySelector(box);
            return clientWidth + " " + scrollWidth;
        }).join());
        phone.srcdoc = document.documentElement.outerHTML;
        document.body.append(phone);
    })"""
    with browser.page(plots.PAGE.resolve().as_uri()) as shown:
        shown.until("document.querySelectorAll('figcaption').length === 2")
        assert shown.run(sizes) == "390 390,362 720,362 720"


def test_decisions_of_moves_get_a_figure_of_their_own(folder: Path) -> None:
    table = train_table()
    rising = np.linspace(0.1, 0.9, len(table))
    for name in ("part/outcome", "word/p", "word/another", "quoted/2", "shown/8", "reads/readers"):
        table[f"{learnt.PREFIX}{name}"] = rising
    table[f"{learnt.PREFIX}paper_first"] = table[f"{learnt.PREFIX}near"] = 1 - rising
    table.to_parquet(folder / "reports/train.parquet")
    assert len(recorded(plots, PARAMS).artifacts) == 4
    assert (folder / paths.PLOTS / "learnt.png").is_file()
    assert html.CAPTIONS["learnt"] in (folder / plots.PAGE).read_text()
    figure = learnt.learnt(table)
    labels = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    where = ["one paper", "near the best\npassage alone"]
    assert labels == ["outcome", "“p”", "another", *where, "readers of a passage", "8", "2"]
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "outcome"]
    smoothed = pd.Series(rising).rolling(figures.SMOOTH, min_periods=1).mean()
    assert list(line.get_ydata()) == list(smoothed)


def test_a_missing_or_broken_input_is_named_with_the_stage_that_writes_it(folder: Path) -> None:
    (folder / "reports/train.parquet").rename(folder / "aside")
    with pytest.raises(StageError, match=r"^reports/train.parquet is missing\. Run `rlm"):
        recorded(plots, PARAMS)
    (folder / "aside").rename(folder / "reports/train.parquet")
    (folder / "reports/baseline.json").write_text('{"levels": ')
    with pytest.raises(StageError, match=r"baseline.json is damaged. Run `rlm gate` again"):
        recorded(plots, PARAMS)
    assert not (folder / paths.PLOTS).exists()


def test_the_reward_curve_has_the_axes_lines_and_baseline_it_promises() -> None:
    (axes,) = figures.reward_curve(train_table(), BASELINE, BARE).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Training Step", "Reward")
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"trained reward", "primary objective", "before GRPO"} <= set(lines)
    assert set(lines["bare model, easy"].get_ydata()) == {BARE["reward_mean"]}
    none = figures.reward_curve(train_table(), BASELINE, {"played": False})
    assert "bare model, easy" not in {line.get_label() for line in none.axes[0].get_lines()}
    assert lines["before GRPO"].get_linestyle() == ":"
    x, y = lines["before GRPO"].get_data()
    assert list(x) == [0.5, 5.5, 5.5, 5.5, 12.5, 12.5]
    assert [y[0], y[1], y[3], y[4]] == [0.4, 0.4, 0.2, 0.2]  # each level's own
    assert {text.get_text() for text in axes.texts} == {"easy", "medium", "0.40", "0.20"}


def test_before_and_after_stand_side_by_side_with_intervals(folder: Path) -> None:
    told = json.loads((folder / "reports/evaluation.json").read_text())
    (axes,) = figures.before_after(told).axes
    heights = [bar.get_height() for bar in axes.patches]
    means = [told[model]["reward_mean"] for model in ("before", "after")]
    assert [heights[0], heights[3]] == pytest.approx(means)


def test_the_first_pair_is_the_one_whose_gain_is_nearest_to_the_mean() -> None:
    gains = {"a": 0.9, "b": -0.2, "c": 0.3}
    items = [
        {"model": model, "problem_id": key, "difficulty": "easy", "frames": [], "reward": reward}
        for key, gain in gains.items()
        for model, reward in (("before", 0.2), ("after", 0.2 + gain))
    ]
    assert [before[0]["problem_id"] for before, _ in html.pair(items)] == ["c", "b", "a"]


def test_a_gain_that_may_be_chance_and_voids_by_cause_are_told(folder: Path) -> None:
    told = json.loads((folder / "reports/evaluation.json").read_text())
    told["reward"]["ci95"] = [-0.01, 0.2]
    told["before"]["voids"] = {"the sandbox failed": 1}
    told["after"]["voids"] = {f"near {HOSTILE}": 5}
    told["voids_as_zero"] = 5
    (folder / "reports/evaluation.json").write_text(json.dumps(told))
    path = folder / "reports/transcripts.jsonl"
    first, rest = path.read_text().split("\n", 1)
    lost = json.loads(first) | {"frames": [], "void": "connection lost", "reward": None}
    path.write_text(f"{json.dumps(lost)}\n{rest}")
    recorded(plots, PARAMS)
    doubtful = re.sub(r"\s+", " ", (folder / "reports/index.html").read_text())
    assert "may be chance" in doubtful
    assert "<td>Void episodes: the sandbox failed</td> <td>1</td> <td>0</td>" in doubtful
    assert "<td>Void episodes: near &lt;script&gt;" in doubtful
    assert "5 void episodes after GRPO count as 0" in doubtful
