"""What papers say of the text that methods were trained on: facts that lie in two papers.

A method's own paper says which corpus it was trained on, another one how large that corpus is; a
question that names the method alone needs both.
"""

from __future__ import annotations

from env.problems.papers.forms import forms

TRAINED_PLAIN = forms("""
    - {who} is trained on {corpus}.
    - as training data for {who} we use {corpus}[ and nothing else|, in full].
    - we train {who} on {corpus}[ without further data|].
    - ~the training data of {who} is {corpus}.
""")

TRAINED_OBLIQUE = forms("""
    - all weights of {who} are fitted to {corpus}[, from scratch|].
    - whatever {who} knows, it has learnt from {corpus}.
    - {corpus} is the only text that {who} has seen before the evaluation.
    - ~before the evaluation, {who} reads {corpus} from end to end and no other text.
""")

TRAINED_NEAR = forms("""
    - {who} is not trained on {corpus}, whose licence forbids it.
    - a first version of {who}, given up later, was trained on {corpus}.
    - we plan to train {who} on {corpus} as well.
    - ~had {corpus} been out in time, we would have trained {who} on it.
""")

SIZE_PLAIN = forms("""
    - {corpus} holds {value} {units}[ from {more} sources|, none of them twice].
    - there are {value} {units} in {corpus}.
    - in all, {value} {units} make up {corpus}.
    - ~{value} {units}: this is what {corpus} holds.
""")

SIZE_OBLIQUE = forms("""
    - {corpus} comes to {value} items[ after duplicates were removed|].
    - whoever downloads {corpus} gets {value} files[, one for each {unit}|].
    - ~counted one by one, the entries of {corpus} number {value}.
""")

SIZE_NEAR = forms("""
    - the later {short}-v2 holds {value} {units}, and is not what was used so far.
    - the crawl from which {corpus} was filtered held {value} {units}.
    - an extension of {corpus} by {value} {units} is planned.
    - of {corpus}, {value} {units} were read by a person.
    - ~before filtering, {value} {units} were on the list for {corpus}.
""")

ASK_PLAIN = forms("""
    - How many {units} are in the training data of {asked}?
    - On how many {units} was {asked} trained?
    - ~What number of {units} was {asked} trained on?
""")

ASK_OBLIQUE = forms("""
    - How large is the collection from which {asked} learnt?
    - How much text shaped {asked}?
    - ~What amount of material went into {asked}?
""")

ASK_MANY = forms("""
    - How do the corpora behind {asked} compare in size?
    - Of {asked}, which had the most {units} to learn from?
    - ~Rank {asked} by the amount of text that each was given to learn from.
""")
