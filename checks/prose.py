"""Plain English in docstrings, comments, messages and documents.

Prints `file:line: found -> advice` for each violation, and fails if there is one. Quoted code
(between backticks, in fences), tables and drawings are not checked, nor are released changes.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

MOST_WORDS = 25
EXEMPT = (
    *("docs/commands.md", "docs/problem_samples.md", "docs/rewards_table.md"),
    "docs/attacks_table.md",
    *("docs/experiments.md", "docs/measurements.md", "docs/former_world.md"),
    *("docs/adr/", "tests/moved.md"),
    *("tests/data/", "tests/unit/test_checks.py"),
)
"""Generated pages, records that are not rewritten, and texts that tests carry."""

PATTERNS = {
    r"(?<!\bthere )\b(?:is|are|was|were) no\b(?! longer| more)": "is not a",
    r"\bthere (?:is|are|was|were) none\b": "does not exist",
    r"\b(?:stands?|stood)\b(?! for\b| out\b|-)": "is in, occurs in",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\btold\b": "reported, printed",
    r"\banew\b": "again",
    r"\bwhoever\b": "users who",
    r"\bfor want of\b": "without",
    r"\bbeforehand\b": "before",
}
START = r"(?:What|Who|Whoever|Those|That of|One that)\b(?!.*\?$)"

Block = tuple[int, str]
"""First line and text of a paragraph, a comment or a message."""


def violations(path: Path, source: str) -> Iterator[str]:
    """`file:line: found -> advice` for each violation of a file."""
    if path.name == "CHANGELOG.md":
        source = re.split(r"^## \[\d", source, maxsplit=1, flags=re.M)[0]
    if path.suffix == ".py":
        blocks = python_blocks(source, messages=path.parts[0] != "tests")
    else:
        prose = "\n".join(prose_lines(source))
        blocks = paragraphs(prose, 1) if path.suffix == ".md" else comments(source)
    for line, text in sorted(blocks):
        for sentence in sentences(text) if not re.search("[├└]", text) else ():
            for found, advice in faults(sentence):
                yield f"{path}:{line}: {found} -> {advice}"


def faults(sentence: str) -> Iterator[tuple[str, str]]:
    """Faults of a sentence, each with what to write instead."""
    for pattern, advice in PATTERNS.items():
        for found in re.finditer(pattern, sentence, re.I):
            yield f'"{found[0]}"', advice
    if start := re.match(START, sentence):
        yield f'"{start[0]} ..."', "start with a noun or an imperative verb"
    if (count := len(re.findall(r"\S*\w\S*", sentence))) > MOST_WORDS:
        yield f"{count} words", f"at most {MOST_WORDS}; split: {sentence[:50]}..."


def sentences(text: str) -> list[str]:
    """Sentences of a block. Code in backticks is one word; so is the address of a link."""
    plain = re.sub(r"`+[^`]*`+", "_", text)
    plain = re.sub(r"\]\([^)]*\)", "]", plain)
    return re.split(r"(?<=[.!?:])\s+(?=[\"'*(]*[A-Z_])", plain.strip())


def python_blocks(source: str, messages: bool) -> Iterator[Block]:
    """Comments and docstrings; with `messages` the other texts, too."""
    yield from comments(source)
    seen: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            seen.add(node.value)
            yield from paragraphs(str(node.value.value), node.lineno)
        elif not messages or node in seen:
            continue
        elif isinstance(node, ast.JoinedStr):
            seen.update(ast.walk(node))
            parts = [str(p.value) if isinstance(p, ast.Constant) else "_" for p in node.values]
            if is_message(text := "".join(parts)):
                yield from paragraphs(text, node.lineno)
        elif isinstance(node, ast.Constant) and is_message(node.value):
            yield from paragraphs(node.value, node.lineno)


def is_message(value: object) -> TypeGuard[str]:
    """Whether a string has four words or more and is not Python code, a pattern or a word list."""
    if not isinstance(value, str) or len(re.findall("[a-z]+ ", value)) < 3:
        return False
    if re.search(r"\w\|\w.*\w\|\w", value):
        return False
    if len(value.split()) > MOST_WORDS and not re.search(r"\b(?:a|and|in|is|of|the|to)\b", value):
        return False
    try:
        ast.parse(value.strip())
    except (SyntaxError, ValueError):
        return True
    return False


def comments(source: str) -> Iterator[Block]:
    """Comments of Python, YAML, TOML and shell; lines that follow each other are one block."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(r"\s*# (.*)", line)
        if found and not re.search(r"[^\s.!?:] {2,}\S", found[1]):  # columns are a table
            block.append(found[1])
        elif block:
            yield number - len(block), " ".join(block)
            block = []
        if not found and (beside := re.search(r"\S  # (.*)", line)):
            yield number, beside[1]


def prose_lines(source: str) -> list[str]:
    """The lines of a document; those of fences and tables are empty."""
    lines, fenced = [], False
    for line in source.splitlines():
        fenced ^= (mark := line.lstrip().startswith("```"))
        lines.append("" if fenced or mark or line.lstrip().startswith("|") else line)
    return lines


def paragraphs(text: str, start: int) -> Iterator[Block]:
    """Runs of lines; a list item, a heading or an entry of `Args:` starts another."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start):
        opens = re.match(r"\s*([-*#>]+|\d+\.)\s|\s*[\w*`., ()]+:(\s|$)", line)
        if block and (opens or not line.strip()):
            yield number - len(block), " ".join(block)
            block = []
        if line.strip():
            block.append(line.strip())


def tracked() -> list[str]:
    """Files that git tracks."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def main() -> int:
    """Check the files that are named, or all that git tracks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="default: all files that git tracks")
    parser.add_argument("--count", action="store_true", help="print only the number of each file")
    options = parser.parse_args()
    suffixes = (".py", ".md", ".yaml", ".yml", ".toml", ".sh", "Makefile", "Dockerfile", ".ci/run")
    files = [f for f in options.files or tracked() if f.endswith(suffixes)]
    counts: Counter[str] = Counter()
    for name in files:
        if not name.startswith(EXEMPT):
            for violation in violations(Path(name), Path(name).read_text(encoding="utf-8")):
                counts[name] += 1
                if not options.count:
                    print(violation)
    if options.count:
        print("\n".join(f"{count:5}  {name}" for name, count in counts.most_common()))
    if counts:
        print(f"{counts.total()} violations in {len(counts)} files", file=sys.stderr)
    return bool(counts)


if __name__ == "__main__":
    sys.exit(main())
