"""Collect questions about clinical trials, with the evidence that doctors marked.

`python -m examples.trials.collect SOURCE` reads a clone of github.com/jayded/evidence-inference
(docs/trials.md says how to get one) and fills data/trials/ with documents/*.txt, the articles, and
trials.jsonl, problems in the format of docs/own_data.md. It prints how many prompts it left out,
and for which reason. `opponents.py` scores search alone on them.
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from rewards.spans import CharInterval, merge

TARGET = Path("data/trials")
QUESTION = "How does {intervention} compare with {comparator} in its effect on {outcome}?"
LEVELS = {"easy": 1, "medium": 4, "hard": 8}
"""Papers of a problem: the article itself, and its nearest trials of the same split."""
SPLITS = ("train", "validation", "test")

LEAST_CHARS = 25
"""Characters of evidence; a shorter span can be covered by chance."""
MOST_CHARS = 600
"""Characters of a question; a longer one leaves no room for an answer in a small model's frame."""
TOPIC_CHARS = 3000
"""Characters at the start of an article, its title and abstract, that tell its topic."""
WORDS = 20
"""Words that are reported: those of the demonstrations' queries (profile `trials`)."""
NAMED = 5
"""Prompts that a line of the report names."""

_PARTS = (
    *("README.md", "prompts_merged.csv", "v2_annotations.csv", "txt_files"),
    *(f"splits/{split}_article_ids.txt" for split in SPLITS),
)
_COLUMNS = {
    "prompts_merged.csv": ("PromptID", "PMCID", "Outcome", "Intervention", "Comparator"),
    "v2_annotations.csv": (
        *("PromptID", "PMCID", "UserID", "Valid Label", "Valid Reasoning", "Label Code"),
        *("Annotations", "Evidence Start", "Evidence End"),
    ),
}
_NUMBER = re.compile(r"\d+")
_HEADING = re.compile(r"^[A-Z][A-Z .,&/()-]*:", re.MULTILINE)
_TRUE = ("true", "1", "1.0")
_WORD = re.compile(r"\w\w")


class CollectError(Exception):
    """Why nothing can be collected, and what to do about it."""


@dataclass(frozen=True)
class Prompt:
    """A question of one article, with the evidence that each doctor marked."""

    prompt_id: int
    article: int
    split: str
    question: str
    marked: Mapping[str, Sequence[CharInterval]]
    """Spans of the article by doctor, merged."""

    @property
    def gold(self) -> list[CharInterval]:
        """What any doctor marked."""
        return merge(span for spans in self.marked.values() for span in spans)


@dataclass(frozen=True)
class Collection:
    """Articles, their prompts, and why other prompts were left out."""

    texts: Mapping[int, str]
    prompts: Sequence[Prompt]
    left_out: dict[str, list[int]]
    """Ids of prompts by reason."""
    incomplete: dict[str, list[int]]
    """Ids of prompts that are kept without a part of their evidence, by reason."""


def read(source: Path) -> Collection:
    """Prompts of a clone.

    Args:
        source: folder with `annotations`, or that folder itself.

    Raises:
        CollectError: a file is missing, or cannot be read.
    """
    folder = source / "annotations" if (source / "annotations").is_dir() else source
    if missing := [name for name in _PARTS if not (folder / name).exists()]:
        raise CollectError(
            f"{folder} has no {missing[0]}. Name a clone of github.com/jayded/evidence-inference "
            "that has it (docs/trials.md)."
        )
    flagged = _numbers(_text(folder / "README.md").partition("# Caveat")[2].partition("###")[2])
    if not flagged:
        raise CollectError(f"{folder / 'README.md'} lists no incorrect prompts under Caveat.")
    prompts, annotations = (_table(folder / name) for name in _COLUMNS)
    splits: dict[int, str] = {}
    for split in SPLITS:
        ids = _numbers(_text(folder / f"splits/{split}_article_ids.txt"))
        splits |= dict.fromkeys(ids, split)
    texts, unread = _articles(folder / "txt_files", splits)
    marked = {int(key): rows for key, rows in annotations.groupby("PromptID")}
    left_out, incomplete = (defaultdict[str, list[int]](list) for _ in range(2))
    kept: dict[tuple[int, str], Prompt] = {}
    for row in prompts.to_dict("records"):
        prompt_id, article = int(row["PromptID"]), int(row["PMCID"])
        names = ("intervention", "comparator", "outcome")
        parts = {name: " ".join(row[name.title()].split()) for name in names}
        question = QUESTION.format(**parts)
        if prompt_id in flagged:
            reason = "flagged as incorrect, questionable or malformed by the data set"
        elif article not in splits:
            reason = "its article is in no split"
        elif article in unread:
            reason = unread[article]
        elif not all(map(_WORD.search, parts.values())):
            reason = "its intervention, comparator or outcome has no word of two letters"
        elif len(question) > MOST_CHARS:
            reason = f"its question has more than {MOST_CHARS} characters"
        elif (article, question.casefold()) in kept:
            reason = "it asks what another prompt asks about the same article"
        else:
            spans, reason = _evidence(marked.get(prompt_id), texts[article])
            if spans:
                prompt = Prompt(prompt_id, article, splits[article], question, spans)
                kept[article, question.casefold()] = prompt
                if reason:
                    incomplete[reason].append(prompt_id)
                continue
        left_out[reason].append(prompt_id)
    if split := min({*SPLITS} - {one.split for one in kept.values()}, default=""):
        reasons = "; ".join(f"{len(ids)}: {reason}" for reason, ids in left_out.items())
        raise CollectError(f"{folder}: no prompt of split {split} is left ({reasons or 'none'}).")
    return Collection(texts, list(kept.values()), left_out, incomplete)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise CollectError(f"{path} is not UTF-8.") from None


def _table(path: Path) -> pd.DataFrame:
    """Columns of a CSV file as text; the ids are numbers."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        return table[list(_COLUMNS[path.name])].astype({"PromptID": int, "PMCID": int})
    except (ValueError, KeyError) as error:
        raise CollectError(f"{path} is not the table of the data set ({error}).") from None


def _articles(folder: Path, numbers: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Texts of the articles that are there, and why others are not."""
    texts, unread = {}, {}
    for number in numbers:
        try:
            # Offsets count characters of these bytes: no line end is translated, no mark removed.
            texts[number] = (folder / name(number)).read_bytes().decode("utf-8")
        except FileNotFoundError:
            unread[number] = "its article is missing"
        except UnicodeDecodeError:
            unread[number] = "its article is not UTF-8"
    return texts, unread


def _evidence(rows: pd.DataFrame | None, text: str) -> tuple[dict[str, list[CharInterval]], str]:
    """Spans of each doctor, merged, and the reason why some or all are left out."""
    if rows is None:
        return {}, "no doctor annotated it"
    valid = rows[rows[["Valid Label", "Valid Reasoning"]].map(_true).all(axis="columns")]
    marked: dict[str, list[CharInterval]] = defaultdict(list)
    broken = ""
    for row in valid.to_dict("records"):
        span = _span(row, text)
        if isinstance(span, str):
            broken = broken or span
        else:
            marked[row["UserID"]].append(span)
    if not marked:
        return {}, broken or "its evidence was not confirmed"
    if len(set(valid["Label Code"])) > 1:
        return {}, "its doctors disagree on the answer"
    return {doctor: merge(spans) for doctor, spans in sorted(marked.items())}, broken


def _span(row: Mapping[str, Any], text: str) -> CharInterval | str:
    """Place of a passage without the white space around it, or what is wrong with it."""
    try:
        start, end = int(float(row["Evidence Start"])), int(float(row["Evidence End"]))
    except (ValueError, OverflowError):
        start, end = -1, -1
    if not 0 <= start < end:
        return "the place of its evidence is not known"
    if end > len(text):
        return "its evidence ends beyond its article"
    passage = text[start:end]
    if "".join(passage.split()) != "".join(row["Annotations"].split()):
        return "its evidence is not at its place"
    start += len(passage) - len(passage.lstrip())
    end -= len(passage) - len(passage.rstrip())
    if end - start < LEAST_CHARS:
        return f"its evidence is below {LEAST_CHARS} characters"
    return start, end


def _true(value: str) -> bool:
    return value.strip().casefold() in _TRUE


def nearest(texts: Mapping[int, str], most: int) -> dict[int, list[int]]:
    """The most similar other articles of each, best first; none that shares no word.

    Args:
        texts: articles of one split.
        most: articles of each, at most.
    """
    numbers = sorted(texts)
    vectors = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform(
        [texts[number][:TOPIC_CHARS] for number in numbers]
    )
    found = {}
    for place, alike in enumerate((vectors @ vectors.T).toarray()):
        alike[place] = 0
        order = sorted(range(len(numbers)), key=lambda other: (-alike[other], other))
        found[numbers[place]] = [numbers[other] for other in order[:most] if alike[other] > 0]
    return found


def rows(collection: Collection) -> list[dict[str, Any]]:
    """Rows of problems; prompts without enough other articles are added to `left_out`.

    A training prompt is asked at one level, by its number. Held-out prompts are asked at each, so
    that levels can be compared on the same questions.
    """
    near: dict[int, list[int]] = {}
    for split in SPLITS:
        there = {one.article for one in collection.prompts if one.split == split}
        near |= nearest({n: collection.texts[n] for n in there}, max(LEVELS.values()) - 1)
    made = []
    for prompt in collection.prompts:
        dealt = list(LEVELS)[prompt.prompt_id % len(LEVELS)]
        text = collection.texts[prompt.article]
        for level, papers in LEVELS.items():
            if prompt.split == "train" and level != dealt:
                continue
            articles = [prompt.article, *near[prompt.article][: papers - 1]]
            if len(articles) < papers:
                reason = f"too few articles of its topic for {papers} papers"
                collection.left_out.setdefault(reason, []).append(prompt.prompt_id)
                continue
            own = name(prompt.article)
            row = {
                "problem_id": f"{prompt.prompt_id}-{papers}",
                "split": prompt.split,
                "difficulty": level,
                "question": prompt.question,
                # Sorted, or the evidence would always be in the first document.
                "documents": sorted(map(name, articles)),
                "evidence": [{"document": own, "quote": text[a:b]} for a, b in prompt.gold],
            }
            made.append(row)
    return made


def name(article: int) -> str:
    """File name of an article."""
    return f"PMC{article}.txt"


def write(collection: Collection, made: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write the articles, the problems, and what each doctor marked, by prompt."""
    documents = target / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    for article in {one.article for one in collection.prompts}:
        (documents / name(article)).write_bytes(collection.texts[article].encode())
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
    (target / "trials.jsonl").write_text(lines, encoding="utf-8", newline="\n")
    marked = {str(one.prompt_id): list(one.marked.values()) for one in collection.prompts}
    (target / "doctors.json").write_text(json.dumps(marked), encoding="utf-8")


def frequent_words(collection: Collection) -> list[str]:
    """Words that are in most abstracts of training articles, without common English ones.

    Nobody looks at evidence to choose them. But abstracts tell results, too, so words of results
    are among them, and a policy has to find out which ones help. Without a body, all text counts.
    """
    articles = sorted({one.article for one in collection.prompts if one.split == "train"})
    abstracts = [_HEADING.sub("", collection.texts[n].partition("\nBODY")[0]) for n in articles]
    counter = CountVectorizer(binary=True, stop_words="english", token_pattern=r"\b[a-z]+\b")
    counts = counter.fit_transform(abstracts).sum(axis=0).A1
    order = sorted(zip(-counts, counter.get_feature_names_out(), strict=True))
    return [str(word) for _, word in order[:WORDS]]


def report(collection: Collection, made: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines: problems by split and level, then prompts by the reason why they are left out."""
    prompts = Counter(one.split for one in collection.prompts)
    counts = Counter((row["split"], row["difficulty"]) for row in made)
    for split in SPLITS:
        levels = ", ".join(f"{level} {counts[split, level]}" for level in LEVELS)
        yield f"{split}: {prompts[split]} prompts; problems: {levels}"
    yield f"problems: {len(made)} about {len({one.article for one in collection.prompts})} articles"
    reasons = sorted(collection.left_out.items(), key=lambda entry: -len(entry[1]))
    told = [("left out", reason, ids) for reason, ids in reasons]
    for reason, ids in collection.incomplete.items():
        told.append(("kept", f"a part of whose evidence is left out: {reason}", ids))
    if crossing := [
        one.prompt_id
        for one in collection.prompts
        if all("\n" in collection.texts[one.article][a:b].strip() for a, b in one.gold)
    ]:
        told.append(("kept", "all of its evidence crosses lines, as in a table", crossing))
    for what, reason, ids in told:
        distinct = sorted(set(ids))
        named = ", ".join([*map(str, distinct[:NAMED]), *["..."] * (len(distinct) > NAMED)])
        yield f"{what}: {len(distinct)} prompts, {reason} ({named})"
    yield f"words in most training abstracts: {', '.join(frequent_words(collection))}"


def main() -> int:
    """Collect; return 1 if nothing can be collected."""
    parser = argparse.ArgumentParser(description="Collect questions about clinical trials.")
    parser.add_argument("source", type=Path, help="clone of github.com/jayded/evidence-inference")
    parser.add_argument("--out", type=Path, default=TARGET, help=f"default: {TARGET}")
    args = parser.parse_args()
    try:
        collection = read(args.source)
        made = rows(collection)
        write(collection, made, args.out)
    except (CollectError, OSError) as error:
        print(f"collect: {error}", file=sys.stderr)
        return 1
    print("\n".join(report(collection, made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
