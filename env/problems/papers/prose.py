"""Running text of every paper: introduction, related work, results, limitations, conclusion.

Each form is a passage of a few sentences. None states what a question could ask for: no score, no
aspect (`aspects.py`), no trait (`traits.py`), no size of a corpus.
"""

from __future__ import annotations

from env.problems.papers.forms import forms

ABSTRACT = forms("""
    - [Reading|Searching] {units} is slow work, and {task} promises relief.
    - {task} asks for passages, not for {units}. This changes how systems have to be built and how
      they have to be compared.
    - Evidence in {units} is scattered, and most of it is phrased in more than one way.
    - Recent progress in {task} rests on few data sets.
    - A {unit} is long, and what matters in it is short.
    - ~Hardly anybody reads {units} for pleasure. The less of them has to be read, the better.
    - ~Between a question and the right line of a {unit} lies much that only looks right.
""")

INTRODUCTION = forms("""
    - Anyone who works with {units} knows how much time goes into finding the one passage that
      matters. A {unit} is rarely written to be searched: it is written to be complete. {task} tries
      to give [back some of that time|readers a shorter way], and has become a field of its own.
    - The need for {task} is older than the methods for it. Offices kept card indexes, then
      spreadsheets, then search engines that treat every {unit} as a bag of words. [None of these|No
      such aid] tells a reader why a passage was returned.
    - Two properties make {units} hard for standard models. They are long, so that a fixed window
      shows only a part of each; and they refer to each other, so that the part which is shown may
      be empty without its neighbours.
    - Progress in {task} has been [fast|steady] on paper. It is less clear how much of it survives a
      change of data, since few groups use the same preparation. We return to this point in the
      discussion of our results.
    - A reader of {units} does three things at once: she skims, she remembers, and she compares.
      Models for {task} usually do one of them. {other}, for instance, skims; {other2} remembers.
    - Much recent work assumes that a larger window makes careful reading unnecessary. Our
      experience with {units} speaks for a middle way, in which a cheap first look decides where
      the costly second look is spent.
    - It is tempting to treat {task} as plain retrieval. Yet a relevant {unit} is not an answer, and
      an answer without its place in the {unit} [cannot be checked|is of little use to an auditor].
    - Why does {task} still need research? One reason is that evidence is scattered. Another is that
      the same wording means different things in {units} of different age.
    - The costs of a wrong answer in {task} are uneven. A missed passage may go unnoticed for years,
      while a spurious one is found at once by whoever reads it. Systems should therefore show where
      each claim comes from.
    - ~Few areas depend on {units} as silently as this one does. When {task} works nobody notices,
      and when it fails the reader blames the {unit}. This may explain why the subject was
      neglected for so long.
    - ~Consider a clerk who has to decide within an hour whether any of a thousand {units} bears on
      a case. She does not need a summary. She needs the passages, and the confidence that no other
      exists; {task} is about that confidence.
    - The remainder of this paper is organised as usual. We first place the work among its
      neighbours, then describe what was done, and then report what came of it. Material that would
      interrupt the argument has been moved to the appendix.
    - Earlier studies of {task} differ in what they call a unit of evidence. Some return whole
      pages, others single clauses. Throughout this paper a unit is a sentence or a row of a table.
""")

RELATED = forms("""
    - Early systems for {task} were built from rules. They were [precise|reliable] where the
      rules applied and silent elsewhere. Traces of them live on in the preprocessing of nearly all
      later work, ours included.
    - A second line of research learns dense representations of passages. {other} belongs here, as
      does {other2}. What separates them is less the encoder than the choice of negative examples.
    - Graph-based readers connect mentions across {units} and pass messages along the edges. They
      find much, and a single wrong edge spreads. {other} is often named in this context.
    - Work on long inputs is relevant too. Sliding windows, memory tokens and recursive calls have
      all been tried on {units}. A survey would exceed the space of this section.
    - Benchmarks shape the field as much as methods do. {bench} made comparisons possible that were
      guesswork before, and its successors kept the format. Whether the format suits {task} in
      practice is another matter.
    - Closest to our work is {other}, which shares the general recipe and differs in the order of
      its stages. [We discuss|We come back to] the difference where it matters. {other2} uses
      neither of the two stages.
    - Evaluation has its own literature. String overlap rewards copying, learnt metrics reward
      fluency, and both have been criticised for {task}. We follow common practice here and report
      {metric} throughout.
    - Several groups study how people search {units}. Their findings agree on one thing: readers
      stop early. A system that ranks well but buries the second piece of evidence serves them
      badly.
    - Data for {task} is scarce because labels need training in the subject. {corpus} eased the
      situation, and smaller sets followed. Most of them stem from a single office or a single
      decade.
    - ~Outside our field, related questions come up under other names. Archivists speak of finding
      aids, lawyers of discovery, and engineers of traceability. The methods travel well, the
      measures do not.
    - ~There is also work that we could not place. Some of it was published without code, some
      without data, and some without either. We mention it where a reader would otherwise miss it.
    - Distillation and pruning have been applied to nearly every model above. They change the price
      of a system rather than what it can do, and we leave them aside. The same holds for hardware.
    - Interactive systems ask the user to confirm passages and learn from the reply. {other} can be
      run in this way. In this paper all systems work without a user.
""")

RESULTS = forms("""
    - The ranking of the systems is alike by all measures. Where two systems change places,
      they were close to begin with. We therefore discuss the tables as a whole and not cell by
      cell.
    - Some comparisons need care. {other} and {other2} were released years apart, with different
      defaults for the same options. [We report them as they are|No adjustment was made for this].
    - Looking at single outputs, we see the expected pattern. Simple questions are answered by every
      system, and the rest divides the field. Most of that rest comes from a handful of {units}.
    - On {bench} the picture is less clear than elsewhere. Its questions are short, and many can be
      answered from the title. This compresses the differences between systems.
    - The second release of a benchmark is not simply harder than the first. Questions were removed
      as well as added, so that numbers from the two cannot be compared. We keep them apart in all
      tables.
    - We tested differences by a paired bootstrap over questions. Differences that the test does
      not support are [not discussed|left without comment]. None of our conclusions rests on a
      single question.
    - A note on numbers from other papers: preprocessing differs, and so do the versions of the
      scoring script. Where we could, we ran systems ourselves. Where we could not, we say so.
    - Development scores are given for completeness. They were seen many times while the systems
      were built and should not be read as results. The tables that matter are those on test data.
    - ~What do the numbers mean for a reader? In a typical session, a difference of a few points is
      one passage more or less. That may be the passage that counts.
    - ~Tables flatter whoever prints them. To guard against this, we fixed the list of systems and
      data sets before the first run, and print every cell that we filled.
    - Errors of different systems overlap less than their scores suggest. A vote among three of them
      would win on each data set, at three times the price. We did not include such a vote.
""")

LIMITS = forms("""
    - Readers should keep the scope of this study in mind. All {units} are in one language, and most
      come from public bodies. Other sources may bring other troubles.
    - Our comparison covers the systems that could be had. Commercial services were left out, since
      their versions change without notice. So were systems that need a licence for each {unit}.
    - We have not studied what happens after an answer is shown. Whether a reader trusts it, checks
      it or ignores it is a matter for other methods than ours.
    - The labels that all of this rests on have limits as well. They record what somebody found,
      not what was there to be found. A system that finds more is counted as wrong.
    - Finally, {task} is a moving target. Forms change, and so do the habits of those who fill them
      in. Nothing here should be taken as a statement about {units} of the future.
    - ~A study of this kind ages. The software it uses will be replaced, and the {units} will be
      kept in other formats. We have tried to describe what we did so that it can be done again.
    - There are questions that our data cannot answer. It has no {units} with drawings, and no
      record of who asked and why. We would welcome data that has both.
""")

CONCLUSION = forms("""
    - We have looked at {task} from one side, and there are others. What we hope to have shown is
      that the subject rewards patience with detail. The appendix holds what did not fit.
    - In future work we want to look at {units} as they come in, one by one. That changes the
      problem, since nothing can be indexed ahead. It may also change which methods are worth
      having.
    - To conclude, {task} is neither solved nor hopeless. The tools exist, and what is missing is
      agreement on how to use them. We see this paper as a step in that direction.
    - ~If there is one lesson, it is a modest one. {units} were written by people for people, and
      methods that respect this have fared well.
    - Many decisions in this paper could have been made otherwise. We have tried to name them where
      they were made. Those who decide differently should find enough here to compare.
""")

APPENDIX = forms("""
    - [This appendix|The present appendix] lists what a repetition would need. File names follow
      the pattern of the public release. Times are given in local time and sizes in characters.
    - Files were normalised to one encoding, and soft hyphens were removed. Page numbers are kept as
      they are printed. Headers that repeat on each page of a {unit} were dropped.
    - The order of {units} within a batch is fixed by their names. We checked that shuffling them
      gives the same files. The check is part of the scripts.
    - For the tables, cells are separated by bars and rows by line ends. Merged cells repeat their
      content. Empty cells are kept, since a missing value in a {unit} is information.
    - ~Each {unit} has an identifier that does not depend on its content. Where a {unit} was split,
      the parts carry a letter. Where two were joined, the older identifier was kept.
    - Abbreviations follow the literature. We have avoided new ones, apart from names of systems.
      Numbers are rounded to one digit after the point.
    - Questions were numbered in the order in which they were received. Gaps in the numbering are
      due to questions that were withdrawn. None was withdrawn after the systems had been run.
    - Two scripts read the {units}: one for text and one for tables. They share a tokeniser and
      nothing else. Both stop at the first {unit} that they cannot read.
    - A glossary of terms of the trade was drawn up for readers from outside. It explains words
      that {units} take for granted. The systems did not see it.
    - Spelling was left as found. Old {units} write the same word in several ways, and a reader
      learns to live with it. So, it seems, does a model.
""")
