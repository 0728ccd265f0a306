"""How a reader who knows the English of papers finds a statement: for the expert's REPL.

`agent/scripted_papers.py` sends the source of this module to its frames, so it imports nothing
but `re` and asks for nothing that a REPL cannot give. It knows no generator: what it resolves
(abbreviations, "our full model", "the latter", rows of tables) it resolves from the text.

A *spec* says what is looked for: `kind`, and by kind `method`, `abbr`, `bench`, `metric`, `short`,
`part`, `corpus`, `aspect`.
"""

import re

METHOD = re.compile(r"\b((?:[A-Z][a-z]+ ){2}[A-Z][a-z]+) \(([A-Z]{3})\)")
BENCH = re.compile(r"\b[A-Z][a-z]+-[A-Z]\w+(?:-v\d)?")
CORPUS = re.compile(r"[Tt]he ([A-Z][a-z]+ (?:Archive|Corpus|Collection|Repository))(?!-v)")
OWN = re.compile(
    r"\b(?:our (?:full )?(?:model|approach|system|method)"
    r"|the (?:full|complete|proposed|final) (?:system|model|method))\b",
    re.IGNORECASE,
)
DEV = re.compile(r"development|validation|tuning|\bdev\b", re.IGNORECASE)
SCORE = re.compile(r"\b\d\d\.\d\b")
NOT_A_SCORE = re.compile(
    r"without|switched off|reduced|stripped|lacks|points of|falls by|down by|costs|"
    r"did not|is planned|future work|could not",
    re.IGNORECASE,
)

# For each kind: what states it, and what takes it back.
STATED = {
    "weakness": r"(?:performs?|does) poorly|out of reach for|still makes|goes astray|it is lost",
    "cause": r"\bdue to\b|of the lead of|owes its rank|behind the distance|nothing but",
    "updates": r"trained for|\btrain .* for\b|adjusted .* times|ends at step|steps we freeze",
    "size": r"million (?:parameters|weights|numbers)|to [\d,]+ million|million is the number",
    "training": r"trained on|training data (?:for|of)|we train .* on|fitted to|has learnt from|"
    r"only text that|from end to end",
    "corpus": r"\bholds\b|there are|make up|comes to|downloads|entries of",
    "diverged": r"diverged|to infinity|collapsed|exploded",
    "agreement": r"agreement between annotators|same label to only|labellers",
    "leakage": r"in the training data|also stands in what|fitted before|two sides of the split",
    "slow": r"too slow|rules out a live|replies arrived|sit through",
    "seeds": r"random seed|initialisation lie|starting weights",
    "closed": r"cannot be released|forbids us|may not copy|on the premises",
    "people": r"human readers|specialists who|clerks we hired|trained staff",
    "bigger": r"larger encoder|doubling the number of layers|million weights to|the capacity",
    "metric": r"disagrees|by hand, we would|fine in the eyes|waved",
    "threshold": r"to be tuned|what the decision threshold|cut-off|draw the line|line between",
    "energy": r"kilowatt|kWh",
}
TAKEN_BACK = {
    "weakness": r"performs well|expected|was not tested|typical of",
    "cause": r"not due|not tested|at first we thought|is not\b",
    "updates": r"pilot|parts removed|did not train|^had we",
    "size": r"variant of|encoder alone|not built|earlier design",
    "training": r"not trained|first version|plan to|^had ",
    "corpus": r"-v\d|crawl|extension|by a person|before filtering|on the list",
    "diverged": r"\bnone\b|did not happen|cannot confirm|whether",
    "agreement": r"was high|not met here|not measured|reached a kappa",
    "leakage": r"found no test|were removed|did not check|free of",
    "slow": r"fast enough|left out|whether|asks for a reply",
    "seeds": r"hardly vary|is unknown|do not see|at most",
    "closed": r"are released|unlike data|whether|of others",
    "people": r"no better|whether|better than human|were asked to check",
    "bigger": r"helps throughout|whether|does help|it helps",
    "metric": r"\bagrees|whether|not used|at one",
    "threshold": r"does not have to|whether|one decision|same decision",
    "energy": r"not recorded|unknown|cannot say",
}


def sentences(text: str) -> list[tuple[str, str]]:
    """(sentence, the one before it in its paragraph); rows of tables are left out."""
    found = []
    for line in text.split("\n"):
        before = ""
        for sentence in [] if line.startswith("|") else re.split(r"(?<=[.?!]) (?=[A-Z0-9])", line):
            found.append((sentence, before))
            before = sentence
    return found


def own_method(text: str) -> str:
    """Abbreviation of the method that a paper proposes; empty when it proposes none."""
    found = METHOD.search(text.partition("\n1 ")[0])
    return found.group(2) if found else ""


def complete(context: dict[str, str], spec: dict[str, str]) -> dict[str, str]:
    """The spec with the abbreviations that any of the papers introduces."""
    whole = "\n".join(context.values())
    done = dict(spec)
    for full, abbr in METHOD.findall(whole):
        if full == spec.get("method"):
            done["abbr"] = abbr
    if "metric" in spec:
        short = re.search(re.escape(spec["metric"]) + r" \((\S+?)\)", whole, re.IGNORECASE)
        done["short"] = short.group(1) if short else spec["metric"]
    return done


def names(sentence: str, spec: dict[str, str], own: bool) -> bool:
    """Whether a sentence speaks of the method; `own`: it stands in the paper that proposes it."""
    if spec["method"] in sentence or re.search(rf"\b{spec['abbr']}\b", sentence):
        return True
    return own and OWN.search(sentence) is not None


def measured_in(sentence: str, spec: dict[str, str]) -> bool:
    """Whether it speaks of the metric, by its name or its abbreviation."""
    if spec["metric"].lower() in sentence.lower():
        return True
    return re.search(rf"(?<!\w){re.escape(spec['short'])}(?!\w)", sentence) is not None


def on_bench(sentence: str, before: str, spec: dict[str, str]) -> bool:
    """Whether it speaks of the benchmark in the release asked for, and of no other."""
    told = BENCH.findall(re.sub(r"the second release of (\S+\w)", r"\1-v2", sentence))
    which = re.search(r"\b(former|latter)\b", sentence)
    if which and not told:
        pair = BENCH.findall(before)
        told = [pair[0] if which.group(1) == "former" else pair[-1]] if pair else []
    return told == [spec["bench"]]


def score_quotes(text: str, spec: dict[str, str], own: bool, strict: bool) -> list[str]:
    """Sentences and rows that report the method's score on the test split."""
    found = []
    for sentence, before in sentences(text):
        if (
            names(sentence, spec, own)
            and SCORE.search(sentence)
            and measured_in(sentence, spec)
            and on_bench(sentence, before, spec)
            and not (strict and (DEV.search(sentence) or NOT_A_SCORE.search(sentence)))
        ):
            found.append(sentence)
    return found + row_quotes(text, spec, own)


def row_quotes(text: str, spec: dict[str, str], own: bool) -> list[str]:
    """Rows of the tables by the metric on test data, where the method's cell is a number."""
    found, caption = [], ""
    benches: list[str] = []
    for line in text.split("\n"):
        if line.startswith("Table "):
            caption, benches = line, []
        elif line.startswith("|") and measured_in(caption, spec) and not DEV.search(caption):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not benches:
                benches = cells
                continue
            named = cells[0] in (spec["abbr"], spec["abbr"] + " (ours)")
            ours = own and "(ours)" in cells[0]
            at = benches.index(spec["bench"]) if spec["bench"] in benches else 0
            if (named or ours) and at and SCORE.fullmatch(cells[at]):
                found.append(line)
    return found


def ablation_quotes(text: str, spec: dict[str, str], own: bool, strict: bool) -> list[str]:
    """Sentences that say what is lost without the part."""
    found = []
    for sentence, before in sentences(text):
        part = spec["part"] in sentence
        direct = part and re.search(r"loses|removing .* costs", sentence, re.IGNORECASE)
        carried = spec["part"] in before and re.search(
            r"^(?:switching it off|its absence|when it is missing)", sentence, re.IGNORECASE
        )
        denied = re.search(r"doubl|did not|plan to", sentence, re.IGNORECASE)
        if (carried or (direct and names(sentence, spec, own))) and not (strict and denied):
            found.append(sentence)
    return found


def stated_quotes(text: str, spec: dict[str, str], own: bool, strict: bool) -> list[str]:
    """Sentences in the words of the kind, about the method or corpus if one is asked for."""
    kind = spec.get("aspect", spec["kind"])
    found = []
    for sentence, _ in sentences(text):
        if not re.search(STATED[kind], sentence, re.IGNORECASE):
            continue
        if "corpus" in spec and spec["corpus"] not in sentence:
            continue
        if "method" in spec and not names(sentence, spec, own):
            continue
        if not (strict and re.search(TAKEN_BACK[kind], sentence, re.IGNORECASE)):
            found.append(sentence)
    return found


def quotes(text: str, spec: dict[str, str], strict: bool = True) -> list[str]:
    """Verbatim statements of what the spec asks for.

    Args:
        text: one paper.
        spec: from `complete`.
        strict: false leaves in what denies, plans, or speaks of another setting.
    """
    abbr = own_method(text)
    if spec["kind"] == "board":
        full = {short: name for name, short in METHOD.findall(text)}
        return (
            score_quotes(text, {**spec, "method": full[abbr], "abbr": abbr}, True, strict)
            if (abbr)
            else []
        )
    own = abbr != "" and abbr == spec.get("abbr")
    if spec["kind"] == "score":
        return score_quotes(text, spec, own, strict)
    if spec["kind"] == "ablation":
        return ablation_quotes(text, spec, own, strict)
    return stated_quotes(text, spec, own, strict)


def candidates(context: dict[str, str], spec: dict[str, str]) -> list[str]:
    """Papers that may hold a statement, at a first look."""
    return [i for i, text in context.items() if quotes(text, spec, strict=False)]
