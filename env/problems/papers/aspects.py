"""What any paper of a field may say of its own work, whatever it proposes.

For each aspect: statements that share words with the plain question, statements that do not, near
misses (denied, not examined, said of others), and the questions. A paper makes the statement of
an aspect, or a near miss of it, or neither; nothing else in a paper touches an aspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from env.problems.papers.forms import Forms, forms


@dataclass(frozen=True)
class Topic:
    """One thing that papers state."""

    plain: Forms
    """Statements in the words of `ask_plain`."""
    oblique: Forms
    """The same in other words."""
    near: Forms
    """What looks like it and is not."""
    ask_plain: Forms
    ask_oblique: Forms


ASPECTS: Mapping[str, Topic] = {
    "diverged": Topic(
        plain=forms("""
            - {few} of our {more} training runs diverged [after {thousands} updates|within the first
              epoch] and [were restarted|had to be repeated].
            - training runs with the larger learning rate diverged in {percent} % of our attempts.
            - ~with mixed precision, {few} training runs diverged and were left out of the averages.
        """),
        oblique=forms("""
            - in {few} attempts out of {more} the loss went to infinity [before the first
              evaluation|after {thousands} updates], and we went back to the last sound checkpoint.
            - for {few} of {more} initial states the weights collapsed to a constant output, so that
              we [replaced them|drew new ones].
            - ~the gradient exploded {few} times before a schedule was found that held for
              {thousands} updates.
        """),
        near=forms("""
            - none of our {more} training runs diverged[, at either learning rate|].
            - we looked for training runs that diverged and found none among {tens}.
            - that training runs diverged, as others report, [did not happen here|we cannot
              confirm] in {tens} attempts.
            - ~whether training runs would have diverged with more than {thousands} {units} was not
              tried.
        """),
        ask_plain=forms("""
            - Which papers report training runs that diverged?
            - Which training runs diverged, according to the papers?
            - ~In which papers do training runs diverge?
        """),
        ask_oblique=forms("""
            - Which authors had trouble to get their optimisation to settle?
            - Who admits that fitting the model did not always succeed?
            - ~Where did learning go off the rails?
        """),
    ),
    "agreement": Topic(
        plain=forms("""
            - agreement between annotators was low, with a kappa of {low} on {hundreds} {units}.
            - on {hundreds} {units} we found low agreement between annotators ({low}).
            - ~low agreement between annotators, a kappa of {low}, limits what can be learnt here.
        """),
        oblique=forms("""
            - two readers who worked independently gave the same label to only {percent} % of
              {hundreds} {units}.
            - a kappa of {low} shows how often our labellers saw one and the same {unit}
              differently.
            - ~asked for a second opinion, our labellers overturned {percent} % of what
              their colleagues had marked.
        """),
        near=forms("""
            - agreement between annotators was high, with a kappa of {high} on {hundreds} {units}.
            - low agreement between annotators is a known trouble of {task}, but was not met here
              (kappa {high}).
            - agreement between annotators was not measured on the {hundreds} {units} that one
              person labelled.
            - ~on {hundreds} {units} the agreement between annotators reached a kappa of {high}.
        """),
        ask_plain=forms("""
            - Which papers report low agreement between annotators?
            - Where was agreement between annotators low?
            - ~Which papers found that agreement between annotators was low?
        """),
        ask_oblique=forms("""
            - In whose studies did the people who judged the material often contradict each other?
            - Who had to live with judges of different minds?
            - ~Which teams saw their judges fall out over what is right?
        """),
    ),
    "leakage": Topic(
        plain=forms("""
            - we found {tens} test {units} in the training data[ and left them there|, too late to
              remove them].
            - a check found {percent} % of the test {units} in the training data.
            - ~in the training data we found copies of {tens} test {units}.
        """),
        oblique=forms("""
            - a search for shared passages shows that {percent} % of what systems are judged by also
              stands in what they learnt from.
            - {tens} of the items that decide the ranking turned out to be copies of items that had
              been fitted before.
            - ~an overlap of {percent} % between the two sides of the split came to light only after
              our runs had ended.
        """),
        near=forms("""
            - we found no test {units} in the training data, although we compared {thousands} pairs.
            - {tens} test {units} that resembled training data were removed before the split.
            - we did not check whether test {units} stand in the training data, which holds
              {thousands} {units}.
            - ~a check of {thousands} pairs found the training data free of test {units}.
        """),
        ask_plain=forms("""
            - Which papers found test {units} in the training data?
            - Where were test {units} found in the training data?
            - ~According to which papers does the training data hold test {units}?
        """),
        ask_oblique=forms("""
            - Where had part of the evaluation material been seen before it was used?
            - Whose figures are clouded by contamination?
            - ~Which authors came upon a leak between fitting and judging?
        """),
    ),
    "slow": Topic(
        plain=forms("""
            - with {tens} seconds a query, our system is too slow for interactive use.
            - at {tens} seconds a query the system is too slow for interactive use[ on one
              accelerator|, even with batching].
            - ~too slow for interactive use: this is what {tens} seconds a query amount to.
        """),
        oblique=forms("""
            - a single {unit} keeps one accelerator busy for {tens} seconds, which rules out a live
              service.
            - users in a pilot gave up, because replies arrived only after {tens} seconds.
            - ~nobody who has a customer on the telephone will sit through the {tens} seconds that
              each reply takes.
        """),
        near=forms("""
            - at {hundreds} milliseconds a query our system is fast enough for interactive use.
            - systems too slow for interactive use, {few} in all, were left out of our comparison.
            - whether our system is too slow for interactive use was not measured; we ran it on
              {hundreds} queries in one batch.
            - ~interactive use asks for a reply within {hundreds} milliseconds, which our system
              gives.
        """),
        ask_plain=forms("""
            - Which papers say that their system is too slow for interactive use?
            - Whose system is too slow for interactive use?
            - ~Which systems are too slow for interactive use by the account of their own papers?
        """),
        ask_oblique=forms("""
            - Whose approach makes a person wait too long for an answer?
            - Which authors concede that latency bars them from deployment?
            - ~Where would impatience be the end of a product built on the work?
        """),
    ),
    "seeds": Topic(
        plain=forms("""
            - results vary strongly with the random seed: the best and the worst of {few} runs lie
              {points} points apart.
            - our results vary strongly, by {points} points, with the random seed.
            - ~strongly varying results, {points} points between one random seed and the next, are
              what we see.
        """),
        oblique=forms("""
            - between the luckiest and the unluckiest initialisation lie {points} points.
            - repeating a run with nothing changed but the starting weights moves the figures by up
              to {points} points.
            - ~a gap of {points} points separates runs that differ in nothing but the draw of their
              starting weights.
        """),
        near=forms("""
            - results hardly vary with the random seed: {few} runs lie within {tenths} points.
            - how strongly results vary with the random seed is unknown, as we could afford
              only one seed for {few} settings.
            - we do not see results that vary strongly with the random seed[ ({tenths} points over
              {few} runs)|: {few} runs differ by {tenths} points].
            - ~over {more} runs the random seed moves our results by {tenths} points at most.
        """),
        ask_plain=forms("""
            - Which papers report results that vary strongly with the random seed?
            - Whose results vary strongly with the random seed?
            - ~Where do results vary strongly with the random seed?
        """),
        ask_oblique=forms("""
            - Who concedes that luck decides much of the outcome?
            - Whose numbers are hard to reproduce, because of chance alone?
            - ~Which authors warn that a repetition may come out quite differently?
        """),
    ),
    "closed": Topic(
        plain=forms("""
            - for [legal reasons|reasons of privacy] our data cannot be released, all {thousands}
              {units} of it.
            - our data, {thousands} {units}, cannot be released.
            - ~of our data, {thousands} {units} cannot be released to anybody.
        """),
        oblique=forms("""
            - the contract with the [archive|publisher|ministry] forbids us to pass the {thousands}
              {units} on.
            - readers who want to repeat this study have to obtain the {thousands} {units} from
              their owner, as we may not copy them.
            - ~the {thousands} {units} stay on the premises of their owner, where outsiders have no
              access.
        """),
        near=forms("""
            - all our data, {thousands} {units}, are released[ under a permissive licence|].
            - unlike data that cannot be released, our {thousands} {units} are there for everybody.
            - whether our data can be released is still being decided for {hundreds} {units}.
            - ~data of others that cannot be released, {hundreds} {units}, were not used by us.
        """),
        ask_plain=forms("""
            - Which papers say that their data cannot be released?
            - Whose data cannot be released?
            - ~Which data cannot be released, according to the papers?
        """),
        ask_oblique=forms("""
            - Which authors are barred from handing their material on?
            - Where would a reader look in vain for a download?
            - ~Who has to keep the sources under lock and key?
        """),
    ),
    "people": Topic(
        plain=forms("""
            - human readers are still better than our system, by {points} points on {hundreds}
              {units}.
            - on {hundreds} {units}, human readers are better than our system by {points} points.
            - ~better than our system by {points} points: this is how human readers fare.
        """),
        oblique=forms("""
            - {few} specialists who answered {hundreds} of the questions made half as many mistakes
              as the best model.
            - on a sample of {hundreds} {units} the clerks we hired outperform every model by at
              least {points} points.
            - ~trained staff, given {hundreds} {units} and no help, left every model {points} points
              behind.
        """),
        near=forms("""
            - on {hundreds} {units}, human readers are no better than our system.
            - whether human readers are better than our system was not examined, for want of
              readers for {hundreds} {units}.
            - our system is better than human readers by {points} points on {hundreds} {units}.
            - ~human readers were asked to check {hundreds} {units}, not to compete with our system.
        """),
        ask_plain=forms("""
            - Which papers find that human readers are better than the system?
            - According to which papers are human readers better than the system?
            - ~Where are human readers better than the system?
        """),
        ask_oblique=forms("""
            - Where do professionals keep ahead of the machine?
            - Which studies show that automation has not caught up yet?
            - ~Who would still rather trust an expert's eye, going by the figures?
        """),
    ),
    "bigger": Topic(
        plain=forms("""
            - a larger encoder does not help: with {hundreds} million parameters all figures stay
              where they were.
            - a larger encoder, of {hundreds} million parameters, does not help.
            - ~what does not help is a larger encoder, of {hundreds} million parameters.
        """),
        oblique=forms("""
            - doubling the number of layers moved the figures by no more than {tenths} points.
            - going from {hundreds} million weights to {few} billion changed less than the noise
              between runs.
            - ~{few} times the capacity bought {tenths} points, which is nothing.
        """),
        near=forms("""
            - a larger encoder helps throughout: with {hundreds} million parameters we gain
              {points} points.
            - whether a larger encoder of {hundreds} million parameters would help was not tried,
              for want of memory.
            - a larger encoder does help, though little: {points} points with {hundreds} million
              parameters.
            - ~it helps to take a larger encoder, by {points} points at {hundreds} million
              parameters.
        """),
        ask_plain=forms("""
            - Which papers find that a larger encoder does not help?
            - According to which papers does a larger encoder not help?
            - ~Where is it said that a larger encoder does not help?
        """),
        ask_oblique=forms("""
            - Who saw no benefit from scaling the network up?
            - Which studies speak against spending on size?
            - ~Where was growth of the model wasted effort?
        """),
    ),
    "metric": Topic(
        plain=forms("""
            - the metric disagrees with human judgement in {percent} % of {hundreds} cases.
            - in {percent} % of {hundreds} sampled cases the metric disagrees with human judgement.
            - ~with human judgement the metric disagrees in {percent} of a hundred cases.
        """),
        oblique=forms("""
            - reading {hundreds} outputs by hand, we would have called {percent} % of the supposed
              mistakes correct.
            - what was scored as an error was fine in the eyes of our reviewers {percent} times out
              of a hundred.
            - ~our reviewers waved {percent} % of the outputs through that had been scored zero.
        """),
        near=forms("""
            - the metric agrees with human judgement in {most} % of {hundreds} cases.
            - whether the metric disagrees with human judgement was not examined for the {hundreds}
              cases at hand.
            - a metric that disagrees with human judgement, as those of {few} older studies, was not
              used.
            - ~human judgement and the metric were at one in {most} % of {hundreds} cases.
        """),
        ask_plain=forms("""
            - Which papers report that the metric disagrees with human judgement?
            - Where does the metric disagree with human judgement?
            - ~Which papers say the metric disagrees with human judgement?
        """),
        ask_oblique=forms("""
            - Whose manual inspection casts doubt on the automatic scores?
            - Which authors show that the numbers sell some systems short?
            - ~Where would a reviewer mark more gently than the script does?
        """),
    ),
    "threshold": Topic(
        plain=forms("""
            - the decision threshold has to be tuned for each data set: {few} values were needed for
              {more} sets.
            - for each data set the decision threshold has to be tuned[ on at least {hundreds}
              {units}|, which takes {hundreds} labelled {units}].
            - ~tuned for each data set: this is what the decision threshold has to be, on {hundreds}
              {units}.
        """),
        oblique=forms("""
            - a cut-off that was right for one source was off by {tenths} on the next, so that it
              must be chosen anew every time.
            - moving to a new source means labelling {hundreds} {units} first, only to find out
              where to draw the line.
            - ~where the line between hit and miss belongs has to be found out afresh for every
              source, by {hundreds} labelled {units}.
        """),
        near=forms("""
            - the decision threshold does not have to be tuned for each data set: {tenths} serves
              all {more} of them.
            - whether the decision threshold has to be tuned for each data set was not examined; we
              kept {tenths} for all {more}.
            - one decision threshold, {tenths}, was used for each data set.
            - ~for each data set the same decision threshold of {tenths} was right, without tuning.
        """),
        ask_plain=forms("""
            - Which papers say that the decision threshold has to be tuned for each data set?
            - Whose decision threshold has to be tuned for each data set?
            - ~Where does the decision threshold have to be tuned for each data set?
        """),
        ask_oblique=forms("""
            - Which systems need to be set up afresh wherever they are used?
            - Whose work does not carry over to a new place without some adjustment?
            - ~Who cannot offer a system that works out of the box?
        """),
    ),
    "energy": Topic(
        plain=forms("""
            - training used {hundreds} kilowatt hours of energy[ in all|].
            - the energy that training used was {hundreds} kilowatt hours.
            - ~of energy, training used {hundreds} kilowatt hours.
        """),
        oblique=forms("""
            - the meter of our machine room counted {hundreds} kWh from the first update to the
              last.
            - the electricity bill of all runs comes to {hundreds} kWh[, most of it for the
              encoder|].
            - ~{hundreds} kWh went through the racks until the last checkpoint was written.
        """),
        near=forms("""
            - the energy that training used was not recorded on {few} of our machines, so that we
              give no figure.
            - how much energy training used is unknown for the {few} systems of others.
            - we cannot say how much energy training used, since {more} users shared the machines.
            - ~without meters on {few} of the machines, the energy that training used stays unknown.
        """),
        ask_plain=forms("""
            - Which papers state how much energy training used?
            - How much energy has training used, according to the papers?
            - ~Which papers give the energy that training used?
        """),
        ask_oblique=forms("""
            - Who tells what the experiments cost in electricity?
            - What is known of the power drawn by the experiments?
            - ~Whose ecological footprint could be worked out?
        """),
    ),
}
