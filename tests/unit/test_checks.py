"""The size check counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

from checks import size


def test_size_counts_code_without_comments_and_tests(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "env/a.py": '"""Doc."""\n\n# comment\nx = 1\ny = 2\n',
        "tests/b.py": "z = 1\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    limits = {"code": ["env"], "code_lines": 1, "tests_lines": 2}
    files = [str(path) for path in Path().rglob("*.*")]
    assert list(size.sizes(limits, files)) == [
        ("lines of code", 2, 1),
        ("lines of tests", 1, 2),
    ]
