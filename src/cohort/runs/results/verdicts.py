"""What a run's comparisons say, in words: numbers with rows and intervals, and plainly what is only noise."""

from __future__ import annotations

from cohort.core.statistics.estimates import Estimate
from cohort.core.statistics.intervals import share_interval
from cohort.core.units import counted
from cohort.metrics import counts_hits
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.results import LARGEST_CHANCE, RunResults
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.trial_status import TrialStatus

__all__ = [
    "chance_text",
    "comparison_lines",
    "estimate_text",
    "gain_over",
    "gain_text",
    "is_worse",
    "no_gain",
    "training_value_text",
    "verdicts",
]


def estimate_text(found: Estimate, *, rows: str = "") -> str:
    """Return ``0.625 (95 %: 0.52 to 0.72, 96 rows)``."""
    return f"{found.value:.4g} ({_within(found)}{rows or counted(found.num_rows, 'row')})"


def training_value_text(results: RunResults, value: float | None) -> str:
    """Return a value of the task's metric that was measured on the rows of the evaluations during training."""
    label, num_rows = results.metric_label, results.facts.inputs.evaluation_rows
    if value is None:
        return f"{label} -"
    if num_rows is None:
        return f"{label} {value:.4g}"
    hits, within = value * num_rows, ""
    # of a loss only the comparison at the end keeps what an interval needs
    if counts_hits(results.metric.name) and abs(hits - round(hits)) < 1e-6:
        ends = share_interval(round(hits), num_rows)
        within = f"95 %: {ends.low:.4g} to {ends.high:.4g}, "
    return f"{label} {value:.4g} ({within}{counted(num_rows, 'validation row')})"


def comparison_lines(results: RunResults) -> dict[str, str]:
    """Return what the comparisons at the end measured, by name; nothing for a run that made none."""
    return _finals_lines(results) | _test_lines(results)


def _test_lines(results: RunResults) -> dict[str, str]:
    test, metric, default_id = results.facts.test, results.metric, results.facts.task.default_trial_id
    if test is None or metric.name not in test.winner.values:
        return {}
    # the winner was chosen without these rows, so its value there is not too good by the choice
    lines = {"test": _numbers(test.winner, test, metric)}
    default = None if default_id is None else test.of_trial(default_id)
    if default is not None and default is not test.winner:
        lines["test default"] = _against(default, test, metric)
    if results.chance is not None:
        lines["test base"] = chance_text(results.chance, metric)
    elif test.base is not None:
        lines["test base"] = _against(test.base, test, metric)
    return lines


def chance_text(chance: float, metric: ObjectiveMetric) -> str:
    """Return what stands in place of the base model's value where the base model is the reference."""
    return f"{metric.label} 0 by definition: it is the reference; chance is {chance:g}"


def _finals_lines(results: RunResults) -> dict[str, str]:
    finals = results.facts.finals
    if finals is None or results.metric.name not in finals.winner.values:
        return {}
    metric, default_id = results.metric, results.facts.task.default_trial_id
    lines = {"best": f"{_numbers(finals.winner, finals, metric)}; {_place(finals.winner)}"}
    if len(finals.ranked) > 1:
        lines["runner-up"] = _against(finals.ranked[1], finals, metric)
    default = None if default_id is None else finals.of_trial(default_id)
    if default is not None and default is not finals.winner:
        lines["default"] = _against(default, finals, metric) + _stopped(results, default_id)
    if results.chance is not None:
        lines["base"] = chance_text(results.chance, metric)
    elif finals.base is not None:
        lines["base"] = _against(finals.base, finals, metric)
    if finals.note:
        lines["finals"] = finals.note
    return lines


def no_gain(results: RunResults) -> str | None:
    """Return that the best adapter is no better than the base model, or than chance; None where it is, or was not
    compared.
    """
    finals, metric = results.facts.finals, results.metric
    if finals is None:
        return _no_gain_in_training(results)
    if metric.name not in finals.winner.values:
        return None
    if results.chance is not None:
        best = finals.winner.values[metric.name]
        # by the lower end, where there is one: above chance by luck is no gain
        if (best.value if best.low is None else best.low) <= results.chance:
            return f"nothing beats chance: the best trial's {metric.label} is within noise of it or below"
    elif finals.base is not None:
        gain = gain_over(finals.base, metric)
        if not gain.excludes_zero:
            return "nothing beats the base model: the best trial is within noise of it"
        if gain.value < 0:
            return "nothing beats the base model: the best trial is worse"
    return None


def _no_gain_in_training(results: RunResults) -> str | None:
    """Return the same of a run that ended without a comparison, by the evaluations that its best checkpoint won."""
    name, reference = "the base model", results.base_value
    if results.chance is not None:
        name, reference = "chance", results.chance
    best, facts = results.best, results.facts
    has_ended = facts.base_rows is not None and facts.best_trial_id is not None
    if not has_ended or reference is None or best is None or best.best_value is None:
        return None
    if results.metric.cost(best.best_value) < results.metric.cost(reference):
        return None
    if is_worse(results):
        return f"nothing beats {name}: the best trial is worse in its evaluations during training"
    rows = "" if facts.inputs.evaluation_rows is None else f" on {counted(facts.inputs.evaluation_rows, 'row')}"
    return (
        f"nothing beats {name} in the evaluations during training{rows}, which cannot tell it from noise; a comparison "
        "at the end would (evaluation.finalists)"
    )


def is_worse(results: RunResults) -> bool:
    """Return whether the best adapter is worse than the base model, or than chance, by more than noise."""
    finals, metric = results.facts.finals, results.metric
    if finals is None:
        return results.chance_not_worse is not None and results.chance_not_worse <= LARGEST_CHANCE
    if metric.name not in finals.winner.values:
        return False
    if results.chance is not None:
        high = finals.winner.values[metric.name].high
        return high is not None and high < results.chance
    gain = None if finals.base is None else gain_over(finals.base, metric)
    return gain is not None and gain.excludes_zero and gain.value < 0


def verdicts(results: RunResults) -> list[str]:
    """Return what a user has to know before trusting the best adapter, one sentence each; most important first."""
    finals, metric = results.facts.finals, results.metric
    sentences = [sentence for sentence in (no_gain(results),) if sentence is not None]
    if finals is None or metric.name not in finals.winner.values:
        return sentences
    default_id = results.facts.task.default_trial_id
    default = None if default_id is None else finals.of_trial(default_id)
    if default is finals.winner:
        sentences.append("the default configuration is the best")
    elif default is not None:
        gain = gain_over(default, metric)
        if not gain.excludes_zero:
            sentences.append("the best trial is within noise of the default configuration")
        elif gain.value < 0:
            sentences.append("the default configuration is better than the best trial")
    noise = [entry.trial_id for entry in finals.ranked[1:] if not gain_over(entry, metric).excludes_zero]
    # of the default it was said before
    noise = [trial_id for trial_id in noise if default is None or trial_id != default.trial_id]
    if noise:
        listed = ", ".join(map(str, noise))
        sentences.append(f"the best trial is within noise of trial{'s' if len(noise) > 1 else ''} {listed}")
    return sentences


def _against(other: Contender, comparison: Comparison, metric: ObjectiveMetric) -> str:
    """Return what ``other`` has, and by how much the winner is better."""
    gain = gain_over(other, metric)
    noise = "" if gain.excludes_zero else "within noise of it, "
    place = "" if other.trial_id is None else f"; {_place(other)}"
    return f"{_numbers(other, comparison, metric)}{place}; the best is {noise}{gain_text(gain)}"


def gain_text(gain: Estimate, *, interval: str = "95 %: ") -> str:
    """Return ``better by 0.45 (95 %: 0.3 to 0.6)`` or ``worse by ...``; the interval counts in the direction said."""
    said = gain.negated if gain.value < 0 else gain
    by = f"{'worse' if gain.value < 0 else 'better'} by {said.value:.4g}" if gain.value else "equal"
    return by if said.low is None else f"{by} ({interval}{said.low:.4g} to {said.high:.4g})"


def gain_over(other: Contender, metric: ObjectiveMetric) -> Estimate:
    """Return by how much the winner is better than ``other``; positive is better, whether the metric rises or falls."""
    found = other.winner_minus[metric.name]
    return found if metric.maximize else found.negated


def _numbers(contender: Contender, comparison: Comparison, metric: ObjectiveMetric) -> str:
    found = contender.values[metric.name]
    # rows without a prompt have a loss and no answer
    rows = comparison.rows_text if found.num_rows == comparison.num_rows else counted(found.num_rows, "row")
    text = f"{metric.label} {estimate_text(found, rows=rows)}"
    if metric.name == LOSS.name:
        return text
    return f"{text}, loss {estimate_text(contender.values[LOSS.name], rows=comparison.rows_text)}"


def _within(found: Estimate) -> str:
    return "" if found.low is None else f"95 %: {found.low:.4g} to {found.high:.4g}, "


def _stopped(results: RunResults, trial_id: int | None) -> str:
    """Return that a trial ended early, which explains a large difference; empty for all others."""
    trial = next((entry.trial for entry in results.ranked if entry.trial.trial_id == trial_id), None)
    if trial is None or trial.status is not TrialStatus.STOPPED:
        return ""
    return f"; it was stopped at step {trial.steps_done} of {trial.planned_steps}"


def _place(contender: Contender) -> str:
    return f"trial {contender.trial_id}, step {contender.step}"
