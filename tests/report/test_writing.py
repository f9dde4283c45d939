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
from cohort.report.writing import render_report, write_report
from cohort.runs.fact_groups import InputFacts, RunPlaces
from cohort.runs.reader import RunReader
from cohort.runs.records import DataProblem, TrialRecord
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric
from tests.runs.results.test_verdicts import CLOSE, FAR, results_with
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
    for words in ("underperforming", "diverging", "completed", "When each trial trained", "Compute saved"):
        assert words in page.text
    assert "train.jsonl:17" in page.text
    assert "9f2c9f2c" in page.text


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
    store.add_trials([TrialRecord(trial_id=n, parameters={"r": 8 + n}, planned_steps=10, seed=0) for n in range(2)])
    store.trial_entered(0, slot=0)
    store.append([StepDone(trial_id=0, step=1, loss=2.0, grad_norm=1.0, learning_rate=1.0, num_tokens=9)])
    page = _page(render_report(store.reader))
    assert "No trial has been evaluated yet" in page.text
    assert page.trials == {"0", "1"}


def test_a_run_in_which_everything_is_nan(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    store.add_trials([TrialRecord(trial_id=n, parameters={"r": 8 + n}, planned_steps=10, seed=0) for n in range(2)])
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
        [
            TrialRecord(trial_id=n, parameters={attack: attack + str(n), "r": n}, planned_steps=2, seed=0)
            for n in range(3)
        ]
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

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("cohort.core.durable_files._move_into_place", full)
        with pytest.raises(StorageFullError, match=r"report\.html"):
            write_report(tmp_path / "report.html", reader=reader)
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_page_that_is_written_again_and_again_loads_itself_again(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=1, steps=20))
    with RunReader.open(path) as reader:
        assert '<meta http-equiv="refresh" content="10">' in render_report(reader, reload_seconds=10.0)


class _Tables(HTMLParser):
    """Collects the tables without the class that a phone's style needs, and cells that it would show without a name."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[str] = []
        self.unnamed: list[str] = []
        self.parents: list[str] = []
        self._open: list[tuple[str, str]] = []
        self._cell: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag == "table":
            self.classes.append(values.get("class", ""))
            self.parents.append(self._open[-1][1])
        self._cell = "" if tag == "td" and "data-label" not in values else None if tag == "td" else self._cell
        if tag not in _Page.VOID:
            self._open.append((tag, values.get("class", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._cell:
            self.unnamed.append(self._cell)
        self._cell = None if tag == "td" else self._cell
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell += data.strip()


def test_every_table_can_be_read_on_a_phone(finished: str, tmp_path: Path) -> None:
    """A row becomes a few lines there, so each cell with text says which column it is of."""
    results_with(tmp_path / "compared", base=FAR, runner_up=CLOSE, default_id=0)
    compared = _rendered(tmp_path / "compared" / "run.db")
    assert "Final comparison" in compared
    for html, count in ((finished, 4), (compared, 3)):
        page = _Tables()
        page.feed(html)
        assert len(page.classes) >= count
        assert all("stacks" in entry.split() for entry in page.classes)
        assert all("scroll" in entry.split() for entry in page.parents), "what is too wide scrolls in its own frame"
        assert page.unnamed == []
    assert "@media screen and (max-width: 640px)" in finished
    assert "content: attr(data-label)" in finished
