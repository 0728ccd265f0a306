"""What the services say when they do not start."""

from __future__ import annotations

from pathlib import Path

from flows.services import processes


def test_the_error_of_a_server_is_shown_without_a_password(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO: begins\nsqlalchemy.exc.ArgumentError: no postgresql://a:secret@db/x\nend\n"
    )
    assert processes._last_error(log) == " (no postgresql://db/x)"
    log.write_text("INFO: begins\n")
    assert processes._last_error(log) == ""
