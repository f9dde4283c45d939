"""A trial has eight records at most, each of which says when it exists and who makes it, and one enum of states."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

MOST_RECORDS = 8

RECORDS = {
    "prepare.trials.PlannedTrial": (
        "A trial from its proposal to the end of the run: :func:`plan_trial` makes it of the proposed hyperparameters."
    ),
    "tuning.candidate.Candidate": (
        "The steps of a trial, from its plan on: :func:`plan_candidate` makes it for the study and its exit rules."
    ),
    "training.trial.TrialSpec": (
        "Everything that determines a trial's training, from its plan on: :func:`plan_trial` makes it for executors."
    ),
    "tuning.study_trial.StudyTrial": (
        "A trial while a process trains its task: the study makes it of a candidate and is the only one to change it."
    ),
    "training.step_samples.Resident": (
        "A trial in a slot, with the rows it trains on: an executor makes it when it loads the trial."
    ),
    "training.trial.TrialState": (
        "What is kept of a trial out of its slot: the executor makes it when it is asked for the state."
    ),
    "runs.records.TrialRecord": (
        "A trial as the run's database knows it: its plan makes the first record, and a reader every later one."
    ),
    "runs.results.results.RankedTrial": (
        "A trial with its place among the others: :func:`read_results` makes it for people, at any moment of a run."
    ),
}
"""Each record of a trial with the first sentence of its docstring. Planned, resident, recorded, ranked."""

NAMED_BY_A_TRIAL = {
    # what happens to a trial, what was decided about it, and what people say and hear of it
    "core.events.StepDone", "core.events.Evaluated", "core.events.TrialFailed",
    "tuning.decisions.Decision", "tuning.early_exit.rule.Verdict", "tuning.interventions.Intervention",
    "runs.requests.trial_requests.TrialRequest", "runs.requests.trial_requests.Answer",
    "runs.requests.request_checks.CheckedRequest",
    "engine.callbacks.callback_reports._Report", "engine.callbacks.callback_reports.TrialEndReport",
    # one evaluation, step, checkpoint or stay of it, and the best of a run
    "tuning.early_exit.rule.Observation", "tuning.early_exit.separation.Standing",
    "tuning.study_trial.BestCheckpoint", "checkpoints.stored_state.StoredState", "adapter_files.choose.BestSoFar",
    "runs.records.ResidencyRecord", "runs.results.comparison.Contender",
    "training.optimizers.slot_step.SlotStep", "training.rollouts.answered_step.AnsweredStep",
    "runs.results.results.RunResults",
    # what other programs hold, and curves to replay
    "tuning.samplers.optuna_study.StudyEntry", "tuning.replay.RecordedCurve",
    # what a planner counts: room in an executor, items of a pack, tokens of evaluations
    "scheduling.admission.Request", "scheduling.packing.records.PackItem", "tuning.evaluation_times.Workload",
}  # fmt: skip
"""What a trial's number or plan stands in without being the trial."""

# the calls of an executor's contract, as ranks are told them
CALLS = "ranks."

FIELDS = {"trial_id", "trial", "candidate"}
TYPES = {name.rpartition(".")[2] for name in RECORDS}


@functools.cache
def _classes(source: Path) -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        nodes = ast.walk(ast.parse(path.read_text()))
        found |= {f"{module}.{node.name}": node for node in nodes if isinstance(node, ast.ClassDef)}
    return found


def _describes_a_trial(node: ast.ClassDef) -> bool:
    """Whether it is a record with the number of one trial, one of its records, or a name that says so."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return False
    fields = [
        (line.target.id, ast.unparse(line.annotation).removesuffix(" | None"))
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]
    return "Trial" in node.name or any(name in FIELDS or kind in TYPES for name, kind in fields)


def test_a_trial_has_eight_records_at_most(repository: Path) -> None:
    classes = _classes(repository / "src" / "cohort")
    found = {name for name, node in classes.items() if _describes_a_trial(node) and not name.startswith(CALLS)}
    assert len(RECORDS) <= MOST_RECORDS, "merge two records of a trial before there is a ninth"
    missing = (RECORDS.keys() | NAMED_BY_A_TRIAL) - classes.keys()
    assert not missing, "take them off the lists of this test"
    assert found - RECORDS.keys() - NAMED_BY_A_TRIAL == set(), (
        "one more class describes a trial: use one of RECORDS, or say in NAMED_BY_A_TRIAL what else it is"
    )


@pytest.mark.parametrize(("name", "sentence"), RECORDS.items(), ids=lambda value: str(value).rpartition(".")[2])
def test_each_says_when_it_exists_and_who_makes_it(repository: Path, name: str, sentence: str) -> None:
    docstring = ast.get_docstring(_classes(repository / "src" / "cohort")[name])
    assert docstring is not None
    assert " ".join(docstring.split("\n\n")[0].split()) == sentence
    assert " make" in sentence, "who makes it"


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass\nclass Waiting:\n    trial_id: int",
        "@dataclass(frozen=True)\nclass Line:\n    spec: TrialSpec | None",
        "@dataclass\nclass TrialView:\n    text: str",
    ],
)
def test_a_ninth_record_would_be_found(text: str) -> None:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    assert _describes_a_trial(node)


def test_the_states_of_a_trial_are_one_enum(repository: Path) -> None:
    states = {"PARKED", "PAUSED", "READY", "COMPLETED", "FINISHED"}
    found = {
        name
        for name, node in _classes(repository / "src" / "cohort").items()
        if any("Enum" in ast.unparse(base) for base in node.bases)
        and states & {target.id for line in node.body if isinstance(line, ast.Assign)
                      for target in line.targets if isinstance(target, ast.Name)}
    }  # fmt: skip
    # a job is no trial: a sweep of many of them, paused as a whole
    assert found - {"store.enums.JobStatus"} == {"tuning.trial_status.TrialStatus"}
