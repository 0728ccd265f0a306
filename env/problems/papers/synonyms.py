"""Words that running text may exchange, so that two papers hardly ever share a long stretch.

Which papers an episode has read is told by common stretches (`rewards/reading.py`): boilerplate
must not make one paper look like another. Only running text is varied, never a statement.
"""

from __future__ import annotations

import re
from random import Random

_ALTERNATIVES = """
often/frequently/commonly
usually/as a rule/in general
therefore/hence/for this reason
rarely/seldom
nearly/almost/close to
long/lengthy
most of/the bulk of
because/since/as
while/whereas
may/might/could
should/ought to
next to/beside/together with
method/technique/procedure
methods/techniques/procedures
field/area/discipline
again/once more/anew
at once/immediately/right away
kept/retained/preserved
removed/dropped/taken out
dropped/discarded/left out
wrong/mistaken/false
systems/approaches/solutions
system/approach/solution
the same/the very same
in the appendix/in the annex/at the very end
questions/queries
question/query
passage/snippet/excerpt
passages/snippets/excerpts
readers/users
stage/step/phase
stages/steps/phases
matters/counts/is important
in this paper/in the present paper/here
papers/publications/articles
window/segment/chunk
windows/segments/chunks
small/modest/slight
written/drafted/composed
compared/contrasted
at the end/in the end/finally
numbers/figures
versions/editions
settings/options
files/records
script/program
scripts/programs
changed/altered/modified
seen/read/looked at
shows/reveals/makes visible
named/listed/mentioned
left out/omitted/skipped
"""
"""A word, and what may stand in its place."""

_SAME = {line.split("/")[0]: tuple(line.split("/")) for line in _ALTERNATIVES.split("\n") if line}
_ANY = re.compile(
    r"(?<!an )(?<!more )\b("
    + "|".join(re.escape(word) for word in sorted(_SAME, key=len, reverse=True))
    + r")\b"
)


def vary(text: str, rng: Random) -> str:
    """The text with each exchangeable word drawn anew."""
    return _ANY.sub(lambda match: rng.choice(_SAME[match[1]]), text)
