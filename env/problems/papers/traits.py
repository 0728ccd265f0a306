"""What papers say of one method: its weak spot, the cause of its gain, its size and training.

Statements name the method as `{who}` (by name, or as "our full model" in its own paper) and the
fact as `{value}`; near misses speak of another method `{other}`, of another value `{decoy}`, or
deny, or plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from env.problems.papers.aspects import Topic
from env.problems.papers.forms import forms

WEAKNESSES: Sequence[str] = (
    "{units} with several nested tables",
    "scanned pages without a text layer",
    "questions whose answer is spread over several sections",
    "statements under a double negation",
    "dates that are written out in words",
    "terms that are defined only in an annex",
    "handwritten corrections in the margin",
    "passages that quote an older version of the same {unit}",
    "lists whose items continue over a page break",
    "names that two parties share",
    "references by paragraph number alone",
    "sentences that mix two languages",
)

CAUSES: Sequence[str] = (
    "the order in which examples are shown",
    "the cleaner negatives",
    "the wider beam",
    "the larger vocabulary",
    "the removal of duplicates",
    "the calibrated scores",
    "the overlap between neighbouring windows",
    "the second pass over rejected passages",
    "the shared weights of the two towers",
    "the supervision by section headings",
)

TRAITS: Mapping[str, Topic] = {
    "weakness": Topic(
        plain=forms("""
            - {who} [performs poorly|does poorly] on {value}[, where {percent} % of its answers are
              wrong|: {percent} % of its answers are wrong].
            - on {value}, {who} performs poorly[ (an error rate of {percent} %)|, with {percent} %
              of errors].
            - ~we saw {who} perform poorly on {value}, {percent} errors in a hundred.
        """),
        oblique=forms("""
            - what remains out of reach for {who} is {value}, with {percent} % of all mistakes.
            - of the mistakes that {who} still makes, {percent} % concern {value}.
            - where {who} goes astray, the culprit is {value} in {percent} % of all cases.
            - ~give {who} {value}, and it is lost {percent} times out of a hundred.
        """),
        near=forms("""
            - {who} performs well on {decoy}, where only {few} % of its answers are wrong.
            - {other} performs poorly on {decoy}, where {percent} % of its answers are wrong.
            - we expected {who} to perform poorly on {decoy}, but its error rate there is {few} %.
            - how {who} performs on {decoy} was not tested, since only {tens} {units} hold any.
            - ~poor performance on {decoy}, at {percent} % of errors, is typical of {other}.
        """),
        ask_plain=forms("""
            - On what does {asked} perform poorly?
            - On which material does {asked} perform poorly, according to the papers?
            - ~Which input makes {asked} perform poorly?
        """),
        ask_oblique=forms("""
            - What is the weak spot of {asked}?
            - Which material defeats {asked}?
            - ~Where should nobody rely on {asked}?
        """),
    ),
    "cause": Topic(
        plain=forms("""
            - the gain of {who} is due to {value}[, which accounts for {percent} % of it|:
              {percent} % of it can be traced there].
            - we find that the gain of {who} is due to {value}, to about {percent} %.
            - ~it is {value} that the gain of {who} is due to, to {percent} % at least.
        """),
        oblique=forms("""
            - once the baselines, too, get {value}, {percent} % of the lead of {who} is gone.
            - {who} owes its rank to {value}: without that, {points} points are lost.
            - behind the distance between {who} and the rest stands {value}, worth {points} points.
            - ~take {value} away, and nothing but {points} points separates {who} from the rest.
        """),
        near=forms("""
            - the gain of {who} is not due to {decoy}, which accounts for {tenths} points at most.
            - the gain of {other} is due to {decoy}, to about {percent} %.
            - whether the gain of {who} is due to {decoy} was not tested in our {more} runs.
            - at first we thought that the gain of {who} is due to {decoy}; {more} further runs
              refute this.
            - ~to {decoy}, worth {tenths} points, the gain of {who} is not due.
        """),
        ask_plain=forms("""
            - What is the gain of {asked} due to?
            - To what is the gain of {asked} due, according to the papers?
            - ~What do the papers say the gain of {asked} is due to?
        """),
        ask_oblique=forms("""
            - Why is {asked} ahead of its competitors?
            - What makes {asked} win?
            - ~Where does the success of {asked} have its roots?
        """),
    ),
    "updates": Topic(
        plain=forms("""
            - {who} is trained for {value} updates[ with batches of {tens} {units}|, each on {tens}
              {units}].
            - we train {who} for {value} updates[ in all|, without early stopping].
            - ~{value} updates is what we train {who} for.
        """),
        oblique=forms("""
            - the weights of {who} are adjusted {value} times before they are frozen.
            - optimisation of {who} ends at step {value}[, whatever the loss|].
            - ~after {value} steps we freeze the weights of {who}.
        """),
        near=forms("""
            - {other} is trained for {decoy} updates, as its authors did.
            - in a pilot, {who} was trained for {decoy} updates, which we do not use below.
            - {who} with all parts removed is trained for {decoy} updates.
            - we did not train {who} for more updates, such as {decoy}, for want of time.
            - ~had we trained {who} for {decoy} updates, a week more would have been needed.
        """),
        ask_plain=forms("""
            - For how many updates is {asked} trained?
            - How many updates does the training of {asked} take?
            - ~What number of updates is {asked} trained for?
        """),
        ask_oblique=forms("""
            - How long is {asked} fitted?
            - When does the learning of {asked} stop?
            - ~What length of schedule does {asked} have?
        """),
    ),
    "size": Topic(
        plain=forms("""
            - {who} has {value} million parameters[, embeddings included|, all of them trained].
            - with {value} million parameters, {who} [fits on one accelerator|is of middling size].
            - ~{value} million is the number of parameters of {who}.
        """),
        oblique=forms("""
            - {who} stores {value} million weights[ in half precision|].
            - counted in weights, {who} comes to {value} million.
            - ~on disk, {who} is a list of {value} million numbers.
        """),
        near=forms("""
            - {other} has {decoy} million parameters, embeddings included.
            - a smaller variant of {who}, not used below, has {decoy} million parameters.
            - the encoder alone, on which {who} is built, has {decoy} million parameters.
            - {who} was not built with {decoy} million parameters, which would not fit.
            - ~an earlier design for {who} had {decoy} million parameters.
        """),
        ask_plain=forms("""
            - How many parameters does {asked} have?
            - What number of parameters has {asked}, according to the papers?
            - ~How many million parameters make up {asked}?
        """),
        ask_oblique=forms("""
            - How big is {asked}?
            - What is the footprint of {asked}, embeddings or not?
            - ~How much is there to load for {asked}?
        """),
    ),
}
