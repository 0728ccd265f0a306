"""What papers say of results: a method on a benchmark, by a metric, on a split; and ablations.

A number counts as reported by a paper whether it measured it or cites it; a citation states the
same fact as the paper it cites.
"""

from __future__ import annotations

from env.problems.papers.forms import forms

ALIASES = (
    "our full model",
    "the complete system",
    "the proposed system",
    "our approach",
    "the final system",
)
"""How a paper calls its own method without its name."""

WHERE_PLAIN = {
    "test": forms("- the test split of {bench}\n- the {bench} test split"),
    "dev": forms("- the development split of {bench}\n- the {bench} development split"),
}
WHERE_OBLIQUE = {
    "test": forms("- the held-out part of {bench}\n- the evaluation portion of {bench}"),
    "dev": forms("- the validation part of {bench}\n- the tuning portion of {bench}"),
}
"""How papers name splits."""


def question_where(bench: str, indirect: bool) -> str:
    """How a question names a benchmark's test split."""
    return f"the held-out part of {bench}" if indirect else f"the test split of {bench}"


SECOND_RELEASE = "the second release of {bench}"

OWN = forms("""
    - {who} [reaches|obtains|attains|scores] {value} {metric} on {where}[, averaged over {few}
      runs|, the mean of {few} runs|].
    - on {where}, {who} [arrives at|stands at] {value} {metric}.
    - we measure {value} {metric} for {who} on {where}.
    - evaluated on {where}, {who} comes to {value} {metric}[ over {few} seeds|].
    - ~the {metric} of {who} on {where} is {value}.
    - ~{value} {metric} is what {who} yields on {where}.
""")

SUMMARY = forms("""
    - {who} [lifts|raises] the state of the art on {where} to {value} {metric}.
    - our experiments end at {value} {metric} on {where} for {who}[, more than any system before|].
    - with {value} {metric} on {where}, {who} [sets a new mark|leads the field].
    - ~{who} brings {metric} on {where} to {value}.
""")
"""In an abstract or a conclusion."""

RERUN = forms("""
    - in our hands, {who} reaches {value} {metric} on {where}.
    - run with the released code, {who} obtains {value} {metric} on {where}.
    - retrained by us, {who} scores {value} {metric} on {where}[ over {few} seeds|].
    - as a baseline on {where}, {who} yields {value} {metric}.
    - ~our own runs of {who} on {where} give {value} {metric}.
""")
"""A paper that measures another paper's method."""

CITED = forms("""
    - its authors report {value} {metric} for {who} on {where}.
    - for {who}, the literature gives {value} {metric} on {where}.
    - ~{who} is on record with {value} {metric} on {where}.
""")

PAIR = forms("""
    - we [turn|now turn] to {first} and {second}.
    - [next|now] come {first} and {second}.
""")
PAIR_OF = {
    "test": forms("""
        - on the held-out part of the {which}, {who} reaches {value} {metric}.
        - {who} obtains {value} {metric} on the evaluation portion of the {which}.
        - ~of the {which} we use the held-out part, where {who} comes to {value} {metric}.
    """),
}
"""A sentence that needs the one before it: the former, the latter."""

VARIANT = forms("""
    - without its {part}, {who} still reaches {value} {metric} on {where}.
    - with the {part} switched off, {who} scores {value} {metric} on {where}.
    - a reduced {who}, which lacks the {part}, obtains {value} {metric} on {where}.
    - ~stripped of its {part}, {who} yields {value} {metric} on {where}.
""")

ABSENT = forms("""
    - we did not evaluate {who} on {where}, [whose licence came too late|for want of time], so that
      no {metric} is given.
    - running {who} on {where} [is left for future work|is planned], with {metric} as the measure.
    - for {who} on {where}, {metric} could not be computed.
    - ~no {metric} of {who} on {where} is known to us.
""")
"""Experiments that were not made."""

ASK_ONE_PLAIN = forms("""
    - What {metric} does {asked} reach on {where}?
    - Which {metric} is reported for {asked} on {where}?
    - ~By {metric}, what is the score of {asked} on {where}?
""")
ASK_ONE_OBLIQUE = forms("""
    - How well does {asked} do on {where}, measured in {metric}?
    - In terms of {metric}, how strong is {asked} on {where}?
    - ~How much {metric} can be expected of {asked} on {where}?
""")
ASK_BOARD_PLAIN = forms("""
    - What {metric} do the papers report for their own methods on {where}?
    - Which {metric} do the proposed methods reach on {where}, each by its own paper?
    - ~On {where}, what {metric} do papers give for the method that they propose?
""")
ASK_BOARD_OBLIQUE = forms("""
    - How do newly proposed methods fare on {where} in {metric}, by their own papers?
    - Whose own method was evaluated on {where}, and with how much {metric}?
    - ~In terms of {metric}, what do inventors claim for their methods on {where}?
""")

ABLATION_PLAIN = forms("""
    - without the {part}, {who} loses {value} points of {metric} on {where}.
    - removing the {part} costs {who} {value} points of {metric} on {where}.
    - ~{who} loses {value} points of {metric} on {where} when the {part} is removed.
""")
ABLATION_PAIR = forms("""
    - the next row concerns the {part}.
    - next comes the {part}.
    - ~then there is the {part}.
""")
ABLATION_OBLIQUE = forms("""
    - switching it off costs {value} points of {metric} on {where}.
    - its absence is felt: {metric} on {where} falls by {value} points.
    - ~when it is missing, {metric} on {where} goes down by {value} points.
""")
"""After a sentence of `ABLATION_PAIR`."""

ABLATION_NEAR = forms("""
    - without the {other_part}, {who} loses {value} points of {metric} on {where}.
    - doubling the {part} costs {who} {value} points of {metric} on {where}.
    - we did not remove the {part} from {who} on {decoy_where}, where {metric} is not defined.
    - we plan to remove the {part} from {who} on {decoy_where} as well.
    - ~{who} gains {value} points of {metric} on {where} when the {other_part} is doubled.
""")
ASK_ABLATION_PLAIN = forms("""
    - How many points does {asked} lose without the {part}?
    - What does removing the {part} cost {asked}?
    - ~How many points of {asked} are lost when the {part} is removed?
""")
ASK_ABLATION_OBLIQUE = forms("""
    - What is the {part} of {asked} worth?
    - How much does {asked} depend on the {part}?
    - ~Could one do without the {part} in {asked}?
""")
