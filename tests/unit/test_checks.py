"""Each check of the repository finds a planted violation and passes what is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checks import prose, size


def found(name: str, source: str) -> list[str]:
    return list(prose.violations(Path(name), source))


@pytest.mark.parametrize(
    ("name", "source", "wanted"),
    [
        ("a.md", "Text.\n\nThis is no test.", 'a.md:3: "is no" -> is not a'),
        ("a.md", "- one\n- it stands here", 'a.md:2: "stands" -> is in, occurs in'),
        ("a.py", '"""Say it anew."""', 'a.py:1: "anew" -> again'),
        ("a.py", "x = 1\n# Whoever reads\n# this.", 'a.py:2: "Whoever" -> users who'),
        ("a.py", "x = 1  # told later", 'a.py:1: "told" -> reported, printed'),
        ("a.py", 'raise E(f"{x}: how to mend it")', 'a.py:1: "mend" -> fix'),
        ("a.yaml", "# Said beforehand.\nx: 1", 'a.yaml:1: "beforehand" -> before'),
        ("a.py", '"""What it does."""', 'a.py:1: "What ..." -> start with a noun'),
        ("a.py", f"say('{'the word ' * 13}')", "a.py:1: 26 words -> at most 25"),
        ("a.toml", "# key  of it\n# Told later.", 'a.toml:2: "Told" -> reported, printed'),
        ("CHANGELOG.md", "## [Unreleased]\n- anew\n## [0.1.0]", 'CHANGELOG.md:2: "anew"'),
        ("a.md", "Fine. A " + "word " * 25, "a.md:1: 26 words -> at most 25"),
    ],
)
def test_prose_finds_a_planted_violation(name: str, source: str, wanted: str) -> None:
    assert [v for v in found(name, source) if v.startswith(wanted)], found(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.md", "What is it? It is no longer here. RLM stands for a model."),
        ("a.md", "```\nthere is none\n```\n\n| is no | told |\n\nWrite `anew` [here](mend.md)."),
        ("a.md", "word " * 25 + "\n\n" + "word " * 25),
        ("a.py", '"""Play.\n\nArgs:\n    x: ' + "word " * 20 + "\n    y: " + "word " * 20 + '"""'),
        ("a.py", 'code = "told = [stands for stands in mend]\\nprint(told)"'),
        ("a.py", f"WORDS = ('{'mmap array ' * 20}')"),
        ("a.py", 'PATTERN = r"in the data|also stands in|fitted on"'),
        ("a.py", 'raise NameError(f"there is no variable {key!r}")'),
        ("a.py", '"""Tree.\n\n0 root\n└─ ' + "word " * 30 + '"""'),
        ("a.toml", "# section  of the paper that is told\n# near     " + "word " * 30),
        ("CHANGELOG.md", "## [Unreleased]\n- new\n\n## [0.1.0] - 2026-01-01\n- anew"),
        ("tests/a.py", 'payload = "there is none, and it stands nowhere"'),
    ],
)
def test_prose_passes_plain_sentences_and_code(name: str, source: str) -> None:
    assert found(name, source) == []


def test_prose_fails_and_names_each_place(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("It is told anew.")
    monkeypatch.setattr(sys, "argv", ["prose", "a.md"])
    assert prose.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        'a.md:1: "told" -> reported, printed',
        'a.md:1: "anew" -> again',
    ]
    Path("a.md").write_text("It is printed again.")
    assert prose.main() == 0


def test_size_counts_code_without_comments_and_prose_without_fences(tmp_path, monkeypatch) -> None:
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
        "readme_prose_words": 100,
        "not_documents": ["README.md", "docs/commands.md"],
        "document_words": 1,
    }
    files = [str(path) for path in Path().rglob("*.*")]
    assert [(n, limit) for _, n, limit in size.sizes(limits, files)] == [
        (2, 2),
        (11, 100),
        (3, 100),
        (2, 1),
    ]
