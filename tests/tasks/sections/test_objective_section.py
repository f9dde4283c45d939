"""The objective of a task: a name or a section, its values by type, and what does not fit the rest of the task."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.data.settings import RowReading
from cohort.tasks.loading import load_task
from cohort.tasks.sections.objective_section import declared_objective
from cohort.tasks.trial_values import added_parameters
from cohort.training.objectives import OBJECTIVES
from tests.tasks.task_files import BASE, problems_of, write


def test_each_objective_reads_what_its_type_says() -> None:
    for name, objective in OBJECTIVES.items():
        # the length of mismatched rows comes from the data set's section
        fields = {key: value for key, value in vars(objective).items() if key not in ("max_length", "function")}
        assert fields == declared_objective(name).defaults
        assert objective.needs_reference is declared_objective(name).needs_reference


def test_a_name_is_its_section_with_defaults(folder: Path) -> None:
    task = load_task(write(folder, BASE + "objective: dpo\n"))
    assert task.objective.values == {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0}
    assert task.dataset_settings().reads is RowReading.PAIRS
    assert task.model_dump(mode="json")["objective"] == {
        "type": "dpo",
        "beta": 0.1,
        "loss_type": "sigmoid",
        "label_smoothing": 0.0,
        "reference_adapter": None,
    }
    again = folder / "again.yaml"
    again.write_text(task.resolved_yaml())
    assert load_task(again).model_dump() == task.model_dump()


def test_tasks_without_preferences_are_as_they_were(folder: Path) -> None:
    task = load_task(write(folder, BASE))
    assert task.model_dump(mode="json")["objective"] == "sft"
    assert "beta" not in task.searchable_defaults()
    assert "beta" not in task.search_space().parameters


def test_values_can_be_searched_and_overridden(folder: Path) -> None:
    text = BASE + "objective: {type: simpo, beta: 2.0}\nsearch: {space: {simpo_gamma: [0.3, 1.0]}}\n"
    task = load_task(write(folder, text), ["--objective.cpo_alpha", "0.5"])
    assert task.searchable_defaults()["beta"] == 2.0
    assert task.searchable_defaults()["cpo_alpha"] == 0.5
    assert "simpo_gamma" in task.search_space().parameters
    # a name in the file, and one of its values on the command line
    assert load_task(write(folder, BASE + "objective: kto\n"), ["--beta", "0.2"]).objective.values["beta"] == 0.2


@pytest.mark.parametrize(
    ("addition", "key", "found", "hint"),
    [
        ("objective: dpoo", "objective", "'dpoo'", "objective: dpo?"),
        ("objective: {type: dpo, beta: 0}", "objective.beta", "0", "Write for example beta: 0.1."),
        ("objective: {type: dpo, loss_type: ipoo}", "objective.loss_type", "'ipoo'", "Did you mean loss_type: ipo?"),
        ("objective: {type: dpo, bta: 1}", "objective.bta", "unknown key", "objective.beta"),
        ("objective: {type: orpo, label_smoothing: 0.1}", "objective.label_smoothing", "does not read it", "Remove"),
        ("objective: {type: cpo, loss_type: robust}", "objective.loss_type", "'robust'", "Write sigmoid."),
        (
            "objective: {type: dpo, loss_type: ipo, label_smoothing: 0.1}",
            "objective.label_smoothing",
            "loss_type: ipo",
            "when: {loss_type: sigmoid}",
        ),
        ("objective: {type: dpo, label_smoothing: 0.5}", "objective.label_smoothing", "0.5", "label_smoothing: 0.0"),
        (
            "objective: {type: dpo, reference_adapter: model}",
            "objective.reference_adapter",
            "without",
            "best/ of a run",
        ),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, addition: str, key: str, found: str, hint: str) -> None:
    (problem,) = problems_of(folder, BASE + addition + "\n")
    assert str(problem.where).endswith(key)
    assert found in problem.found
    assert hint in problem.hint


def test_a_trial_that_a_person_adds_has_values_of_its_objective(folder: Path) -> None:
    task = load_task(write(folder, BASE + "objective: dpo\n"))
    assert added_parameters(task, {"beta": 0.4})["beta"] == 0.4
    for values, found in (({"simpo_gamma": 1.0}, "simpo_gamma with dpo"), ({"loss_type": "kto"}, "'kto'")):
        with pytest.raises(InputError, match=found):
            added_parameters(task, values)
