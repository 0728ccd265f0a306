"""How papers are laid out: headings, titles, captions, and which running text goes where."""

from __future__ import annotations

from collections.abc import Mapping

from env.problems.papers import prose, prose_roles
from env.problems.papers.forms import Forms, forms
from env.problems.papers.plan import Role, Section

HEADINGS: Mapping[Role, Mapping[Section, str]] = {
    "method": {
        "introduction": "Introduction",
        "related": "Related Work",
        "method": "Method",
        "setup": "Experimental Setup",
        "results": "Results",
        "ablation": "Ablations",
        "limits": "Limitations",
        "conclusion": "Conclusion",
    },
    "data": {
        "introduction": "Introduction",
        "related": "Related Work",
        "method": "Collection and Annotation",
        "setup": "Baselines",
        "results": "Results",
        "ablation": "Analysis",
        "limits": "Limitations",
        "conclusion": "Conclusion",
    },
    "rerun": {
        "introduction": "Introduction",
        "related": "Background",
        "method": "Protocol",
        "setup": "Set-up of the Runs",
        "results": "Outcomes",
        "ablation": "Sensitivity",
        "limits": "Limitations",
        "conclusion": "Conclusion",
    },
}

PROSE: Mapping[Role, Mapping[Section, Forms]] = {
    "method": {
        "method": prose_roles.METHOD,
        "setup": prose_roles.METHOD_SETUP,
        "ablation": prose_roles.METHOD_ABLATION,
    },
    "data": {
        "method": prose_roles.DATA,
        "setup": prose_roles.DATA_SETUP,
        "ablation": prose_roles.DATA_ABLATION,
    },
    "rerun": {
        "method": prose_roles.RERUN,
        "setup": prose_roles.RERUN_SETUP,
        "ablation": prose_roles.RERUN_ABLATION,
    },
}
SHARED: Mapping[Section, Forms] = {
    "introduction": prose.INTRODUCTION,
    "related": prose.RELATED,
    "results": prose.RESULTS,
    "limits": prose.LIMITS,
    "conclusion": prose.CONCLUSION,
}

SHARES: Mapping[Section, float] = {
    "introduction": 0.17,
    "related": 0.16,
    "method": 0.21,
    "setup": 0.12,
    "results": 0.14,
    "ablation": 0.08,
    "limits": 0.07,
    "conclusion": 0.05,
}
"""Of a paper's words."""

TITLES: Mapping[Role, Forms] = {
    "method": forms("""
        - {full} for {task}
        - {task} by {full}
        - {full}: [Reading|Searching] {units} in Two Stages
        - ~Towards Reliable {task} with {full}
        - ~{full}, or How to Spend a Second Look in {task}
        - ~What {full} Adds to {task}
    """),
    "data": forms("""
        - {bench} and {corpus}: New Material for {task}
        - {task} in the Wild: {bench} and {corpus}
        - ~A Fresh Look at Data for {task}: {corpus}
    """),
    "rerun": forms("""
        - Does It Hold? A Second Look at {task}
        - Rerunning {task}: [Notes|Lessons] from {few} Systems
        - ~On the Shelf Life of Results in {task}
    """),
}

OPENINGS: Mapping[Role, Forms] = {
    "method": forms("""
        - We [present|propose|introduce] {full} ({abbr}), a method for {task} that joins a {part} to
          a {part2}.
        - This paper is about {full} ({abbr}), which approaches {task} by means of a {part} and a
          {part2}.
        - ~For {task} we suggest {full} ({abbr}), built around a {part} and a {part2}.
    """),
    "data": forms("""
        - We [present|describe] new material for {task}, collected and annotated for this purpose.
        - This paper describes how data for {task} was gathered, and what existing systems make of
          it.
        - ~New data for {task} is described, with its history and its faults.
    """),
    "rerun": forms("""
        - We rerun [published|well-known] systems for {task} under one protocol and compare what we
          find with what was reported.
        - How reliable are published results in {task}? We repeat a part of them.
        - ~Results in {task} are repeated here, with mixed success.
    """),
}
CLOSINGS = forms("""
    - [Code and configuration|All scripts] will be put in a public place.
    - We discuss what this means for work on {units}.
    - The paper ends with advice to those who build such systems.
    - ~What follows from this for {units} is discussed at the end.
""")
MENTION = forms("""
    - {name} [combines|joins] a {part} with a {part2}[, and is a common baseline|].
    - A {part} is what {name} [is known for|adds to the usual recipe].
    - ~Known for its {part}, {name} appears in most comparisons.
""")
"""Of another paper's method; where its full name stands, it introduces the abbreviation."""

MEASURES = forms("""
    - We report {metrics}.
    - Results are given in {metrics}.
    - ~The measures are {metrics}.
""")
CAPTIONS = {
    "test": forms("""
        - {metric} on the test splits
        - results on held-out data, in {metric}
        - ~{metric}, held-out parts
    """),
    "dev": forms("""
        - {metric} on the development splits
        - results on development data, in {metric}
        - ~{metric}, validation parts
    """),
}
