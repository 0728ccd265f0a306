"""The log: what repeats is one line a minute, and says what was left out."""

import logging

from env.server.door.logs import RepeatFilter


def test_one_line_a_minute_says_how_many_were_left_out_and_arguments_are_cut(caplog, monkeypatch):
    now = [1e9 / 3]  # no round number
    monkeypatch.setattr(caplog.handler, "filters", [RepeatFilter(lambda: now[0])])
    for number in range(5000):
        logging.error("failed %d", number)
    now[0] += 61
    logging.error("failed %d", 7)
    logging.error("failed %d", 8)
    logging.error("failed %s %d", "x" * 100_000, 3)
    left_out = "failed 7 (4999 more lines like this one were left out)"
    assert caplog.messages == ["failed 0", left_out, f"failed {'x' * 500} 3"]
