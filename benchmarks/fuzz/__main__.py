"""Fuzz the input of a hostile worker and of a hostile client, guided by coverage.

    pip install atheris==3.0.0
    python -m benchmarks.fuzz frames --minutes 10
    python -m benchmarks.fuzz server --minutes 10

`frames`: bytes of a worker, through the frame decoder and the host's reading of results.
`server`: messages of a client, through OpenEnv's WebSocket loop, the environment and its sandbox.
`frames.py` and `server.py` define the findings; the tests run the same checks without atheris. It
ends with libFuzzer's own summary, or at the first finding, whose input is then in `crash-*`.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import tempfile
from pathlib import Path

_MEMORY_BYTES = {"frames": 2 << 30, "server": 8 << 30}
"""Limit of the address space; libFuzzer's own limit is off, since it counts the fuzzer too."""

_INPUT_BYTES = 4096
_INPUT_S = {"frames": 10, "server": 60}
"""Wall seconds after which an input counts as a hang."""


def main() -> None:
    """Fuzz until the time is over or the first finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=["frames", "server"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--corpus", help="folder of inputs to start from and to add to")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        raise SystemExit("atheris is not installed. Run `pip install atheris==3.0.0`.") from None

    logging.disable()
    with atheris.instrument_imports(include=["env.server", "env.prompts", "rewards"]):
        if options.target == "frames":
            from benchmarks.fuzz.frames import check_worker as check
        else:
            from benchmarks.fuzz.server import check_client as check
    limit = _MEMORY_BYTES[options.target]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(options.corpus or folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for number in range(64):  # one input of every kind, as a start for the guidance
            (corpus / f"seed-{number}").write_bytes(bytes([number]) + bytes(range(number, 256)))
        arguments = [
            f"-max_total_time={int(options.minutes * 60)}",
            f"-timeout={_INPUT_S[options.target]}",
            f"-max_len={_INPUT_BYTES}",
            "-rss_limit_mb=0",
            "-print_final_stats=1",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *arguments], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
