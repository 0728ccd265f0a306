"""Facts of an ended episode, from its tree and its problem, as the reward scores them."""

from __future__ import annotations

from env.problems.schema import Problem
from env.server.tree import Tree
from env.server.tree.frame import texts_of
from rewards.combine import EpisodeFacts
from rewards.found import papers_found
from rewards.reading import papers_read
from rewards.sentences import ReaderFacts, lines_shown, share
from rewards.settings import RewardSettings


def episode_facts(tree: Tree, problem: Problem, settings: RewardSettings) -> EpisodeFacts:
    """Facts that the server received and counted, of a tree that has ended.

    A paper without evidence is read if it was shown to a frame or given to a child. One with
    evidence is read if a child returned the evidence.
    """
    evidence, counters = problem.places, tree.counters
    reader, read = None, frozenset[str]()
    if problem.candidates:
        reader = _reader_facts(tree, problem)
    else:
        texts = [
            *tree.shown,
            *(text for frame in tree.children for text in texts_of(frame.context)),
        ]
        shown = papers_read(tree.papers, texts, settings.read_chars, problem.gold_papers)
        children = ((f.given, f.answer) for f in tree.children if f.stop_reason == "final")
        found = papers_found(tree.papers, evidence, children, settings.min_cover)
        read = shown - problem.gold_papers | found
    return EpisodeFacts(
        papers=tree.papers,
        evidence=evidence,
        answer=tree.answer,
        answered=tree.answered,
        papers_read=read,
        turns=counters.turns,
        turns_with_error=tree.failed_turns,
        turns_with_one_block=counters.turns - counters.format_errors,
        sub_calls=counters.sub_calls,
        canaries=frozenset(paper.paper_id for paper in problem.papers if paper.canary),
        reader=reader,
    )


def _reader_facts(tree: Tree, problem: Problem) -> ReaderFacts:
    """Sentences that were shown, one a line, and tokens.

    A child's context is not shown until the child prints it or writes it into a prompt.
    """
    candidates = {span.text for span in problem.candidates}
    others = {line for text in tree.papers.values() for line in text.split("\n")} - candidates
    gold = {span.text for fact in problem.evidence for span in fact.spans}
    shown = lines_shown(gold | others, tree.shown)
    return ReaderFacts(
        gold_shown=share(gold, shown),
        others_shown=share(others, shown),
        candidates=len(problem.candidates),
        tokens=tree.tokens,
    )
