"""An expert for the world of whole papers, without a model: it sees what a client sees.

It reads the question by what such questions look like, searches, hands the papers that may hold
the answer to children, and merges what they quote. How text is read is in `papers_reader.py`,
whose source its frames send. No gold, and nothing of the generator: that it does well proves that
the papers alone say which passages are evidence.
"""

from __future__ import annotations

import inspect
import re

from agent import papers_reader
from agent.scripted import Scripted, Seen, block

_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("board", r"\bown methods?\b|proposed methods|methods? (?:fare|that they propose)|inventors"),
    ("ablation", r"\bwithout the\b|removing|is removed|\bworth\b|depend on the"),
    ("training", r"corpora behind|training data of|trained on\?|was .* trained|learn(?:t)? from|"
     r"collection from|text shaped|material went|how many .* to learn"),
    ("updates", r"updates|is .* fitted\?|learning of|length of schedule"),
    ("size", r"parameters|^how big|footprint of .* embeddings|to load"),
    ("weakness", r"poorly|weak spot|defeats|nobody rely"),
    ("cause", r"due to|\bdue\b|ahead of|\bwin\b|success of"),
    ("score", r"held-out|test split"),
)  # fmt: skip
"""What each kind of question sounds like; the first that fits."""

_ASPECTS: tuple[tuple[str, str], ...] = (
    ("diverged", r"diverge|optimisation to settle|fitting the model|off the rails"),
    ("agreement", r"annotators|contradict|different minds|fall out"),
    ("leakage", r"in the training data|training data hold|seen before|contamination|a leak"),
    ("slow", r"too slow|wait too long|latency|impatience"),
    ("seeds", r"random seed|luck|reproduce|repetition"),
    ("closed", r"released|handing their material|download|lock and key"),
    ("people", r"human readers|professionals|automation|expert's eye"),
    ("bigger", r"larger encoder|scaling|spending on size|growth of the model"),
    ("metric", r"human judgement|manual inspection|sell some systems|more gently"),
    ("threshold", r"threshold|set up afresh|carry over|out of the box"),
    ("energy", r"energy|electricity|power drawn|footprint"),
)

_METHOD = re.compile(r"\b((?:[A-Z][a-z]+ ){2}[A-Z][a-z]+)\b")
_METRIC = re.compile(
    r"(?:measured in|[Ii]n terms of|[Bb]y|[Ww]hat|[Ww]hich|[Hh]ow much|much|, and with how much|in)"
    r" ((?:macro-|mean |exact |recall |balanced |normalised |span |boundary )[\w -]*?(?:\d|\w))"
    r"(?= do\b| does\b| is\b| can\b|,|\?)"
)


def read_question(question: str) -> list[dict[str, str]]:
    """What a question looks for: one spec, or one for each method it names."""
    methods: list[str] = _METHOD.findall(_without_first_word(question))
    kind = next((k for k, sounds in _QUESTIONS if re.search(sounds, question, re.I)), "aspect")
    if kind != "board" and not methods:
        sounds = ((name, s) for name, s in _ASPECTS if re.search(s, question, re.I))
        return [{"kind": "aspect", "aspect": next(sounds, ("diverged", ""))[0]}]
    spec = {"kind": kind}
    if kind in ("board", "score"):
        bench = papers_reader.BENCH.search(question)
        metric = _METRIC.search(question)
        spec["bench"] = bench.group() if bench else ""
        spec["metric"] = metric.group(1) if metric else ""
    if kind == "ablation":
        part = re.search(r"\bthe ([a-z]+ [a-z]+)\b(?:\?| of | is | in )", question)
        part = part or re.search(r"the ([a-z]+ [a-z]+)", question)
        spec["part"] = part.group(1) if part else ""
    if kind == "board":
        return [spec]
    return [{**spec, "method": method, "abbr": method} for method in methods]


def _without_first_word(question: str) -> str:
    """A question's first word has a capital letter and is no name."""
    return question[0].lower() + question[1:]


_HAND_OVER = """
def ask(ids, spec):
    said = []
    prompt = "Quote every statement: " + "; ".join(f"{k}={v}" for k, v in spec.items())
    for k in range(0, len(ids), 8):
        part = ids[k:k + 8]
        said += rlm_query_batched([prompt] * len(part), [context[i] for i in part])
    return [{"paper_id": i, "text": t} for i, ts in zip(ids, said) for t in ts]
"""

_MERGE = """
answer = []
for spec in specs:
    answer += ask(candidates(context, spec), spec)
FINAL(answer)"""

_TWO_HOPS = """
answer = []
for spec in specs:
    trained = ask(candidates(context, spec), spec)
    answer += trained
    for corpus in dict.fromkeys(name for q in trained for name in CORPUS.findall(q["text"])):
        size = {"kind": "corpus", "corpus": corpus}
        answer += ask(candidates(context, size), size)
FINAL(answer)"""


def papers_expert() -> Scripted:
    """Look at the papers, then let children quote and merge: two turns of the root."""
    source = inspect.getsource(papers_reader)

    def script(seen: Seen) -> str:
        if seen.request.depth:
            spec = dict(re.findall(r"(\w+)=([^;]+?)(?:; |$)", seen.task))
            return block(f"{source}\nFINAL(quotes(context, {spec!r}))")
        specs = read_question(seen.task)
        if seen.turn == 0:
            return block(
                f"{source}{_HAND_OVER}\n"
                f"specs = [complete(context, spec) for spec in {specs!r}]\n"
                "print([len(candidates(context, spec)) for spec in specs])"
            )
        return block(_TWO_HOPS if specs[0]["kind"] == "training" else _MERGE)

    return Scripted(script)
