"""Running text of the sections in which papers of different roles differ, in passages.

The rules of `prose.py` hold: nothing here states what a question could ask for.
"""

from __future__ import annotations

from env.problems.papers.forms import forms

METHOD = forms("""
    - The input is a set of {units} and a question; the output is a ranked list of passages. We
      write a passage as a pair of offsets. Nothing else enters or leaves the system.
    - Each {unit} is first cut into windows that overlap by a quarter. A window keeps the title and
      the nearest heading as a prefix. [Short windows|Windows that hold only a heading] are merged
      with their successors.
    - The {part} looks at one window at a time. It sees the question, the window and a summary
      vector of the windows before it. Its output is a single number, which later stages treat as a
      prior.
    - Passages that pass the first stage are encoded again, this time together with the question.
      The second encoder is [deeper|wider] and sees fewer windows. Its scores are added to those of
      the first.
    - A design that we tried first ran both stages on every window. It was easier to explain and no
      better in preliminary runs. We do not report it further.
    - Ties are frequent, because many windows of a {unit} share their wording. We break them by
      position: the earlier window wins. Readers of {units} do the same.
    - Let us fix some notation. Windows of one {unit} are numbered from its beginning, and a window
      before the first is taken to be empty. The question is treated as a window of its own.
    - The {part} has no parameters of its own at inference time. During training it is a soft
      choice, which is sharpened step by step. At the end the choice is sharp, and the
      gradient stops there.
    - Candidate passages are trimmed to whole sentences. A sentence ends at a full stop that is
      followed by a space, or at the end of a line. Rows of tables count as sentences.
    - Why not learn the trimming as well? We tried, and found that a learnt boundary is off by a
      word more often than a rule is. The rule has the further advantage that it can be stated.
    - During training, negatives come from the same {unit} as the positive passage. Negatives from
      other {units} are too easy, and the model soon ignores them. A small share is kept to
      stabilise the scale of the scores.
    - The loss is a sum of two terms. One compares a passage with its negatives, the other compares
      stages with each other. Their balance was set once on development data.
    - ~One may ask what the {part} adds to an attention layer that is there anyway. It adds a
      bottleneck. What does not pass it cannot be attended to later, and the model has to commit.
    - ~The stages are trained together from the start. Training them one after the other is possible
      and needs more bookkeeping. A script in the release does either.
    - At inference time the system keeps a list of the best passages so far. A new passage replaces
      the last one if it scores higher and does not overlap with a better one. The list is returned
      when all windows have been seen.
    - Compared with {other}, the order of scoring and selection is reversed. Compared with {other2},
      no index is needed. Otherwise the three have much in common.
    - Tables need a separate treatment. Each row is written out as a sentence with the column heads
      in front. The original row is kept beside it, so that an answer can point at it.
""")

METHOD_SETUP = forms("""
    - We use the tokeniser of the encoder without changes. Inputs longer than the window are split
      as described above. Questions are never cut.
    - Learning rates were searched on a small grid, and the best value on development data was kept.
      Dropout is left at its default. Weight decay is applied to matrices only.
    - All systems read the same files. Preprocessing is part of the release, and takes less than an
      hour. Baselines were given the same windows as our own system.
    - Scores are computed with the public script. It lowercases, strips punctuation and compares
      offsets. We changed nothing in it.
    - As development data we use what the benchmarks provide. Decisions were made on {bench} where
      there was a choice. Test data was read once, at the end.
    - ~Runs were queued in random order, so that a slow day of the cluster would not hit one system
      alone. Logs of all runs are kept. A summary is in the appendix.
    - The baselines are {other} and {other2}, next to a plain keyword search. For each we took the
      configuration that its authors recommend. Where this was unclear, we asked nobody and took the
      default.
""")

METHOD_ABLATION = forms("""
    - We switch off one part at a time and leave the rest as it is. Parts that depend on each other
      are switched off together. The full tables are in the appendix.
    - Not all parts matter on all data. What helps with short questions may be idle with long ones.
      The average hides this, and we therefore look at single data sets.
    - An ablation shows what a part adds to the others, not what it can do alone. The two may
      differ. We did not build systems from single parts.
    - ~Some effects of an ablation come late in training. Reduced systems were therefore given as
      much time as the full one. None of them was still improving at the end.
    - Interactions between parts were studied in pairs. There are too many pairs for a table, and
      most of them are of no interest. We found no pair that cancels out.
""")

DATA = forms("""
    - Collection began with a list of public sources of {units}. Each source was visited, its terms
      were read, and a sample was downloaded. Sources with unclear terms were dropped at this point.
    - The {units} came in eleven formats. Most are text with markup, some are images of pages. For
      the latter we kept the image next to the text that was read from it.
    - Personal names were replaced by invented ones of the same length. Addresses and numbers were
      treated likewise. The replacement is consistent within a {unit}, but not across {units}.
    - Questions were written by people who had not seen the systems. Each was shown one {unit} and
      asked what a colleague might want to know. They were paid by the hour, not by the question.
    - A second group searched for evidence. They saw the question and the whole set of {units}, and
      marked every passage that answers. Passages that only one of them had marked were discussed.
    - We drew the split by source, not by {unit}. A source that occurs in the test part occurs
      nowhere else. This costs some balance and gains some honesty.
    - ~Why another data set for {task}? The existing ones ask for the topic of a passage, and topics
      can be guessed from a single word. We wanted questions that need the passage to be read.
    - ~The work was done in three rounds. After each, the guidelines were revised, and the
      {units} of that round were read again by somebody else. The final guidelines have nine pages.
    - Every {unit} carries the date of its publication and of its last change. Where the two
      differ, the later version was taken. A flag tells which {units} were replaced.
    - The files can be read with standard tools. One line holds one {unit}, with its sections in
      order. Offsets count characters from the start of the text.
    - Duplicates are a special problem of {units}. They are copied, amended and issued again. We
      compared all pairs by shingles and kept one {unit} of each cluster.
""")

DATA_SETUP = forms("""
    - To see what the data asks of a system, we run existing ones on it. They are used as released.
      No system was adapted to the data beyond its usual training.
    - Baselines are {other} and {other2}, and a keyword search with the usual weights. All of them
      receive the question and nothing else. Hints that annotators saw are withheld.
    - Scores follow the script of {bench}. Ties are counted as half. Empty answers are wrong unless
      there is nothing to find.
    - ~Each baseline was run on one machine, one after the other. Settings come from the papers
      that propose them. We list deviations in the appendix.
""")

DATA_ABLATION = forms("""
    - What makes a question hard? Its length does not, and neither does the length of the {unit}.
      What matters is how many passages share its words without answering it.
    - We removed the titles of all {units} and ran the baselines again. Some of them had relied on
      titles more than we thought. The order of the systems stayed the same.
    - ~Questions were sorted by how many of the systems answer them. Between those that all answer
      and those that none answers lies a broad middle. It is there that systems can be told apart.
""")

RERUN = forms("""
    - A rerun can fail for dull reasons: a missing file, another version of a library, a default
      that has changed. We tried to exclude such reasons first. What remains is reported here.
    - For each system we started from the released code. If there was none, we wrote our own from
      the paper and tested it on the smallest data set. Authors were not consulted.
    - Our protocol was fixed before the first run. It names systems, data sets, measures and the
      number of runs. Two changes that became necessary are marked in the text.
    - We distinguish three outcomes. A number may be confirmed, it may be missed, or it may turn out
      not to be comparable. The last was more frequent than we had expected.
    - All systems share one pipeline for reading {units}. This removes a source of variation that
      papers rarely mention. It also means that our numbers differ from theirs for a known reason.
    - Where papers leave a detail open, we took the most common choice in the field. A list of such
      details is in the appendix. It is longer than we would like.
    - ~Nobody is served by a rerun that is itself beyond checking. Our logs, our configuration files
      and our mistakes are part of the release. The mistakes are in a file of their own.
    - ~The choice of systems was made by lot from all papers on {task} that report numbers on
      {bench}. Surveys and demonstrations were left out. No system was dropped after the draw.
    - A difference between a paper and its rerun is not an accusation. Software changes, and so does
      hardware. We hope that our numbers will be rerun in turn.
""")

RERUN_SETUP = forms("""
    - Code was run in containers with pinned versions. The containers are public. Each run wrote its
      configuration next to its output.
    - We did not tune any system. Settings come from the papers, and where those give a range, from
      the middle of it. A run that crashed for lack of memory was repeated on a bigger machine.
    - Measures were computed by one script for all systems. We checked it against three older ones
      on saved outputs. It agrees with two of them to the last digit.
    - ~The systems are {other}, {other2} and others named below. They were run in the order of their
      publication. No result was looked at before all were there.
""")

RERUN_ABLATION = forms("""
    - To see what our results depend on, we changed one thing at a time. Most changes did nothing.
      The order of {units} in a batch, for one, has no effect that we could measure.
    - Reading errors are a candidate for explaining differences. We corrected two hundred {units} by
      hand and ran everything again. The systems gain alike.
    - ~The version of the scoring script matters more than we had thought. Older versions forgive a
      missing full stop. We use the current one and say so.
""")
