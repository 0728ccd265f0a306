"""The size check counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

from checks import size


def test_size_counts_code_without_comments_and_words_of_documents(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "env/a.py": '"""Doc."""\n\n# comment\nx = 1\ny = 2\n',
        "tests/b.py": "z = 1\n",
        "README.md": "three words here\n\n```\nin a fence\n```\n\n| table |\n",
        "docs/a.md": "two words",
        "docs/commands.md": "not counted",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    limits = {
        "code": ["env"],
        "code_lines": 2,
        "readme_words": 100,
        "not_documents": ["README.md", "docs/commands.md"],
        "document_words": 1,
    }
    files = [str(path) for path in Path().rglob("*.*")]
    assert [(n, limit) for _, n, limit in size.sizes(limits, files)] == [
        (2, 2),
        (11, 100),
        (2, 1),
    ]
