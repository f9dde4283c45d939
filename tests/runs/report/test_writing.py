"""The report: complete, offline, safe, and drawable for every kind of run."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cohort.core.errors import StorageFullError
from cohort.core.events import Evaluated, StepDone
from cohort.runs.facts import DataProblem, InputFacts, RunPlaces, TaskFacts
from cohort.runs.reader import RunReader
from cohort.runs.records import JsonValue, NewTrial
from cohort.runs.report import render_report, write_report
from cohort.runs.report.hyperparameter_effects import hyperparameter_effects, varied_parameters
from cohort.runs.report.labels import number_label
from cohort.runs.report.loss_curves import exponential_average, thinned
from cohort.runs.report.svg import band_axis, linear_axis, log_axis, polyline
from cohort.runs.results import read_results
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from tests.runs.synthetic_run import SyntheticRun, new_best, write_synthetic_run


class _Page(HTMLParser):
    """Collects what a browser would have to fetch, the drawings' data, and unbalanced tags."""

    VOID = frozenset({"meta", "link", "img", "input", "br", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[str] = []
        self.trials: set[str] = set()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.fetches += [values[name] for name in ("src", "href", "xlink:href", "data", "poster") if name in values]
        self.trials |= {values["data-trial"]} if "data-trial" in values else set()
        self.ids += [values["id"]] if "id" in values else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def _rendered(path: Path) -> str:
    with RunReader.open(path) as reader:
        return render_report(reader)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("run") / "run.db"
    return _rendered(write_synthetic_run(path, SyntheticRun(trials=60, steps=100)))


def test_the_page_needs_no_network(finished: str) -> None:
    page = _page(finished)
    assert page.fetches == []
    assert "url(" not in finished
    assert "@import" not in finished
    assert "default-src 'none'" in finished


def test_the_page_shows_every_trial_and_every_outcome(finished: str) -> None:
    page = _page(finished)
    assert page.trials == {str(number) for number in range(60)}
    for words in ("underperforming", "diverging", "completed", "Slot timeline", "Compute saved"):
        assert words in page.text
    assert "train.jsonl:17" in page.text
    assert "9f2c9f2c" in page.text


def test_a_value_of_a_trial_that_was_stopped_early_says_so(finished: str) -> None:
    # trial 0 has the default hyperparameters and is stopped at the end of its warm-up, 5 of 100 steps
    assert re.search(r"default at 5 % ¹.*¹ stopped early", finished, flags=re.DOTALL)


def test_every_drawing_is_valid_and_has_a_text_alternative(finished: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", finished, flags=re.DOTALL)
    assert len(drawings) > 6
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("aria-label") or root.get("aria-labelledby") or root.get("aria-hidden")
        assert not re.search(r"[ML, (]-?(nan|inf)", drawing)
    ids = _page(finished).ids
    assert len(ids) == len(set(ids))


def test_a_report_made_twice_is_the_same(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=9, steps=40))
    assert _rendered(path) == _rendered(path)


@pytest.mark.parametrize(
    "plan",
    [
        SyntheticRun(trials=1, steps=20),
        SyntheticRun(trials=24, steps=60, finished=False),
        SyntheticRun(trials=24, steps=60, metric=ObjectiveMetric(name="exact_match", maximize=True)),
    ],
    ids=["one trial", "mid-run", "exact match"],
)
def test_every_kind_of_run_renders(tmp_path: Path, plan: SyntheticRun) -> None:
    page = _page(_rendered(write_synthetic_run(tmp_path / "run.db", plan)))
    assert len(page.trials) == plan.trials


def test_five_hundred_trials_stay_a_few_megabytes(tmp_path: Path) -> None:
    html = _rendered(write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=500, steps=60, slots=32)))
    assert len(_page(html).trials) == 500
    assert len(html) < 4_000_000


def test_a_run_before_its_first_evaluation_and_one_before_its_first_trial(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    assert "No trial has a finite evaluation yet" in _page(render_report(store.reader)).text
    store.add_trials([NewTrial(trial_id=n, parameters={"r": 8 + n}, planned_steps=10, seed=0) for n in range(2)])
    store.trial_entered(0, slot=0)
    store.append([StepDone(trial_id=0, step=1, loss=2.0, grad_norm=1.0, learning_rate=1.0, num_tokens=9)])
    page = _page(render_report(store.reader))
    assert "No trial has been evaluated yet" in page.text
    assert page.trials == {"0", "1"}


def test_a_run_in_which_everything_is_nan(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    store.add_trials([NewTrial(trial_id=n, parameters={"r": 8 + n}, planned_steps=10, seed=0) for n in range(2)])
    for trial in range(2):
        nan_step = StepDone(trial_id=trial, step=1, loss=math.nan, grad_norm=math.inf, learning_rate=1, num_tokens=9)
        store.append([nan_step, Evaluated(trial_id=trial, step=1, validation_loss=math.inf)])
    assert "none yet" in _page(render_report(store.reader)).text


def test_what_users_wrote_cannot_become_markup(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>\"'>&"
    store = RunStore.create(tmp_path / "run.db")
    problem = DataProblem(where=attack, found=attack, allowed=attack, hint=attack)
    store.set_facts(
        task_name=attack,
        places=RunPlaces(base_model=attack),
        inputs=InputFacts(data_problems=(problem,), data_counts={attack: 1}, target_modules=(attack,)),
    )
    store.add_trials(
        [NewTrial(trial_id=n, parameters={attack: attack + str(n), "r": n}, planned_steps=2, seed=0) for n in range(3)]
    )
    for trial in range(3):
        evaluated = Evaluated(trial_id=trial, step=1, validation_loss=1.0 + trial, metrics={attack: 1.0})
        store.append([evaluated], [new_best(evaluated)])
    failed = Decision(
        trial_id=0,
        step=1,
        kind=DecisionKind.STOP,
        reason=Reason("failed"),
        rule=attack,
        numbers={attack: 1.0},
        message=attack,
    )
    store.append([], [failed])
    html = render_report(store.reader)
    assert "<script>alert" not in html
    assert html.count("<script>") == 1
    _page(html)


def test_a_report_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=2, steps=20))
    with RunReader.open(path) as reader:
        write_report(tmp_path / "report.html", reader=reader)
        before = (tmp_path / "report.html").read_bytes()

        def full(target: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("cohort.core.durable_files._flush_to_disk", full)
        with pytest.raises(StorageFullError, match=r"report\.html"):
            write_report(tmp_path / "report.html", reader=reader)
    assert (tmp_path / "report.html").read_bytes() == before


def test_hyperparameters_that_move_together_share_a_drawing(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=12, steps=40))
    with RunReader.open(path) as reader:
        results = read_results(reader)
    trials = [entry.trial for entry in results.ranked]
    followed = {"lora_alpha": "r"}
    assert varied_parameters(trials, followed=followed) == ["learning_rate", "r", "batch_size"]
    effects = hyperparameter_effects(trials, best=results.best, value_label="validation loss", followed=followed)
    assert [effect.tied for effect in effects] == [(), ("lora_alpha",), ()]
    assert effects[0].spread > effects[2].spread


def _three_trials(path: Path, *, alpha: JsonValue) -> str:
    """The page of three trials of which none repeats a value of another."""
    store = RunStore.create(path)
    space: dict[str, JsonValue] = {"lora_alpha": alpha, "r": [4, 8, 16], "learning_rate": {"min": 1e-5, "max": 1e-3}}
    store.set_facts(task=TaskFacts(document={"lora": {"lora_alpha": 32.0}, "search": {"space": space}}))
    settings: list[dict[str, JsonValue]] = [
        {"lora_alpha": 2.0 * r, "r": r, "learning_rate": rate} for r, rate in ((4, 7e-4), (16, 2e-5), (8, 9e-5))
    ]
    store.add_trials(
        [NewTrial(trial_id=n, parameters=setting, planned_steps=1, seed=0) for n, setting in enumerate(settings)]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(3)]
    store.append(evaluated, map(new_best, evaluated))
    page = render_report(store.reader)
    store.close()
    return page


def test_only_what_the_task_writes_as_a_multiple_moves_with_another(tmp_path: Path) -> None:
    page = _three_trials(tmp_path / "run.db", alpha="2r")
    assert re.findall(r"\(([a-z_, ]+) moves with it\)", page) == ["lora_alpha"]
    assert re.findall(r"<figcaption>([a-z_]+) <span>best trial", page) == ["r", "learning_rate"]
    assert "through 2 hyperparameters" in page


def test_hyperparameters_that_never_repeat_a_value_are_drawn_apart(tmp_path: Path) -> None:
    page = _three_trials(tmp_path / "run.db", alpha=[8.0, 16.0, 32.0])
    assert "moves with it" not in page
    assert re.findall(r"<figcaption>([a-z_]+) <span>best trial", page) == ["lora_alpha", "r", "learning_rate"]
    assert "through 3 hyperparameters" in page


def test_a_continuous_hyperparameter_gets_a_logarithmic_axis(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    rates = [10 ** (-5 + 3 * n / 29) for n in range(30)]
    store.add_trials(
        [
            NewTrial(trial_id=n, parameters={"learning_rate": rate}, planned_steps=1, seed=0)
            for n, rate in enumerate(rates)
        ]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(30)]
    store.append(evaluated, map(new_best, evaluated))
    (effect,) = hyperparameter_effects(store.reader.trials(), best=None, value_label="validation loss", followed={})
    assert "1e-5" in effect.drawing
    assert "median" not in effect.drawing


def test_a_switch_among_the_hyperparameters_is_drawn(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    store.add_trials(
        [
            NewTrial(trial_id=n, parameters={"r": 8 * (1 + n // 2), "use_rslora": n % 2 == 0}, planned_steps=1, seed=0)
            for n in range(4)
        ]
    )
    store.append([StepDone(trial_id=n, step=1, loss=1.0, grad_norm=1, learning_rate=1, num_tokens=8) for n in range(4)])
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(4)]
    store.append(evaluated, map(new_best, evaluated))
    page = render_report(store.reader)
    store.close()
    assert "Parallel coordinates" in page
    assert ">true<" in page


def test_the_running_average_is_the_one_that_the_rules_read() -> None:
    assert [value for _, value in exponential_average([(1, 2.0), (2, 1.0), (3, 1.0)], weight=0.1)] == pytest.approx(
        [2, 1.9, 1.81]
    )
    assert math.isnan(exponential_average([(1, 2.0), (2, math.nan), (3, 1.0)], weight=0.1)[-1][1])


def test_thinning_keeps_both_ends() -> None:
    curve = [(step, float(step)) for step in range(1, 1000)]
    kept = thinned(curve, limit=100)
    assert len(kept) <= 101
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert thinned(curve[:5], limit=100) == curve[:5]


def test_axes_place_values_and_clip() -> None:
    axis = linear_axis(0.0, 10.0)
    assert [label for _, label in axis.ticks] == ["0", "2", "4", "6", "8", "10"]
    assert (axis.place(5.0), axis.place(99.0), axis.place(-math.inf)) == (0.5, 1.0, 0.0)
    assert math.isnan(axis.place(math.nan))
    assert 0 < linear_axis(3.0, 3.0).place(3.0) < 1
    log = log_axis(1e-5, 1e-3)
    assert log.place(1e-4) == pytest.approx(0.5)
    assert [label for _, label in log.ticks] == ["1e-5", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "0.001"]
    assert band_axis(["a", "b"]).place(1.0) == pytest.approx(0.75)
    assert [number_label(value) for value in (1e-5, 2e-4, 0.25, 1536.0, 0.0)] == ["1e-5", "2e-4", "0.25", "1.54e3", "0"]
    assert polyline([(0, 0), (1, math.nan), (2, 2), (3, 3)], classes="c").count("M") == 2
