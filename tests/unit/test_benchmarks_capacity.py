"""benchmarks.capacity: its estimate follows from the figures that it prints."""

from __future__ import annotations

import pytest

from benchmarks.capacity import FIGURES, estimate, main, table

GIVEN = {name: figure.value for name, figure in FIGURES.items()}


def test_cards_beyond_one_host_sample_and_do_not_learn() -> None:
    one, more, twice = (estimate(cards, GIVEN).seconds for cards in (8, 64, 120))
    episodes = GIVEN["episodes"]
    assert one["sampling"] == pytest.approx(episodes * GIVEN["sampled"] / GIVEN["card_sampled"])
    assert more["sampling"] == pytest.approx(one["sampling"] * 64 / 56)
    assert more["learning"] == pytest.approx(8 * one["learning"])
    assert (one["adapter to hosts"], more["adapter to hosts"] > 0) == (0, True)
    assert twice["exchange of records"] == pytest.approx(more["exchange of records"] * 120 / 64)


def test_the_table_names_the_longest_part_and_counts_what_is_needed() -> None:
    few, most = (estimate(cards, GIVEN) for cards in (8, 512))
    assert few.rows["bottleneck"].startswith("sampling, 66%")
    assert most.rows["bottleneck"].startswith("learning")
    assert most.rows["environment servers"].startswith("128 (by sessions 128")
    assert most.rows["proxies"] == "4"
    assert "| bottleneck | sampling, 66% of a step | learning, " in table([few, most])
    slow = estimate(512, GIVEN | {"learners": 512, "exchange_mb": 5})
    assert slow.seconds["learning"] == pytest.approx(few.seconds["learning"])
    assert slow.rows["bottleneck"].startswith("exchange of records")


@pytest.mark.parametrize("given", ["--cards=0", "--cards=-8", "--learners=0", "--sampled=nan"])
def test_a_number_that_is_not_above_0_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.setattr("sys.argv", ["capacity", given])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"{given[2:].partition('=')[0]}: not a" in capsys.readouterr().err
