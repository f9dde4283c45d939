"""Memory of a whole run: a limit and faults change no result, what happened is recorded, nonsense is refused kindly."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cohort.memory.plan as memory_plan
from cohort.core.errors import InputError
from cohort.core.memory_records import PassKind
from cohort.engine.train.watching.progress import SilentWatcher
from cohort.engine.tune import RunOptions, resume, tune
from cohort.planning.check import check_task
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.tasks.loading import load_task
from cohort.tasks.task_file import TaskFile
from cohort.training.device_memory import DeviceMemory, StorageMeter
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs

SECTIONS: dict[str, Any] = {"training": {"max_steps": 6}, "evaluation": {"metric": "exact_match", "max_new_tokens": 3}}


class Watcher(SilentWatcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Inputs, and caches that no other test has filled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COHORT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield write_inputs(tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    tune(tiny_task(folder, **SECTIONS), folder / "undisturbed")
    return outcome_of(folder / "undisturbed")


def facts_of(run: Path) -> RunFacts:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts()


def model_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors"))


@pytest.fixture(scope="module")
def limited(folder: Path) -> tuple[Path, Watcher]:
    """A run under a limit that is never passed."""
    watcher = Watcher()
    task = tiny_task(folder, **SECTIONS, memory={"limit": model_bytes(folder) + (12 << 20)})
    tune(task, folder / "limited", watcher=watcher)
    return folder / "limited", watcher


def test_a_limit_changes_no_result_and_is_recorded(limited: tuple[Path, Watcher], expected: Outcome) -> None:
    run, watcher = limited
    assert outcome_of(run) == expected
    facts = facts_of(run)
    assert facts.memory.of_a_pass == "measured"
    assert facts.passes.num_shortages == 0
    assert any("passes measured in" in note for note in watcher.notes)
    passes = facts.passes
    assert passes.num_observed is not None
    assert passes.error_percent is not None
    assert passes.observed_bytes is not None
    assert passes.num_observed > 0
    assert passes.error_percent < 20
    assert 0 < passes.observed_bytes < 12 << 20


def test_a_second_run_measures_nothing_and_ends_as_the_first(
    folder: Path, tmp_path: Path, limited: tuple[Path, Watcher], expected: Outcome
) -> None:
    watcher = Watcher()
    task = tiny_task(folder, **SECTIONS, memory={"limit": model_bytes(folder) + (12 << 20)})
    tune(task, tmp_path / "run", watcher=watcher)
    assert any("passes were measured by an earlier run" in note for note in watcher.notes)
    facts, before = facts_of(tmp_path / "run"), facts_of(limited[0])
    assert facts.memory.profile_passes == 0
    assert facts.memory.of_a_pass == before.memory.of_a_pass
    assert facts.memory.profile_largest_tokens == before.memory.profile_largest_tokens
    assert facts.sizes == before.sizes
    assert outcome_of(tmp_path / "run") == expected


def test_passes_that_were_thought_to_fit_are_made_smaller(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limited: tuple[Path, Watcher],
    expected: Outcome,
) -> None:
    """Nothing is measured, and what is assumed is wrong: it is learnt, recorded, kept over a stop, and harmless."""
    monkeypatch.setattr(memory_plan, "estimate_passes", lambda *_, **__: MemoryNeeds(pass_bytes=lambda tokens: 0.0))
    facts = facts_of(limited[0])
    assert facts.memory.limit_bytes is not None
    assert facts.memory.available_bytes is not None
    assert facts.sizes.rank_rows is not None
    assert facts.passes.observed_bytes is not None
    bank = facts.sizes.rank_rows * 6144
    needed = facts.memory.limit_bytes - facts.memory.available_bytes + bank + int(0.75 * facts.passes.observed_bytes)
    # the least that a task file may set
    limit = max(1 << 20, needed)
    sections = {**SECTIONS, "memory": {"limit": limit, "profile": False, "margin": 0}}
    watcher = Watcher()
    tune(tiny_task(folder, **sections), tmp_path / "run", watcher=watcher, options=RunOptions(token_budget=4096))
    assert outcome_of(tmp_path / "run") == expected
    facts = facts_of(tmp_path / "run")
    assert facts.memory.of_a_pass == "estimated"
    assert (facts.passes.num_shortages or 0) > 0
    assert facts.passes.token_budgets is not None
    assert facts.passes.token_budgets[PassKind.TRAIN] < 4096
    warnings = [note for note in watcher.notes if note.startswith("warning: out of memory in a training pass")]
    assert warnings
    assert "no result changes" in warnings[0]


class FaultyMemory:
    """Makes every run's meter throw at some of its allocations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, share: float) -> None:
        self.num_thrown, rng = 0, random.Random(seed)
        count, made = StorageMeter._count, DeviceMemory.__init__

        def faulty_count(meter: StorageMeter, tensor: torch.Tensor) -> None:
            count(meter, tensor)
            if rng.random() < share and self.num_thrown < 6:
                self.num_thrown += 1
                raise torch.OutOfMemoryError("CUDA out of memory (injected)")

        def metered(memory: DeviceMemory, *arguments: Any, **options: Any) -> None:
            made(memory, *arguments, **options)
            memory._meter = StorageMeter()

        monkeypatch.setattr(StorageMeter, "_count", faulty_count)
        monkeypatch.setattr(DeviceMemory, "__init__", metered)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))])
def test_faults_at_random_allocations_change_no_result(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome, seed: int
) -> None:
    """In training, in evaluations, in generation; the run is also stopped and resumed in between."""
    with monkeypatch.context() as patch:
        faults = FaultyMemory(patch, seed, share=2e-4)
        tune(tiny_task(folder, **SECTIONS), tmp_path / "run", options=RunOptions(checkpoint_seconds=0))
        assert faults.num_thrown > 0
    assert outcome_of(tmp_path / "run") == expected
    resume(tmp_path / "run")
    assert outcome_of(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("lots", "24GiB"),
        ("-3GB", "24GiB"),
        ("0GB", "24GiB"),
        (24, "Write a unit, such as 24GiB"),
        (True, "bytes with a unit"),
        ([1], "bytes with a unit"),
    ],
)
def test_a_limit_that_is_none_is_refused(folder: Path, limit: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        tiny_task(folder, memory={"limit": limit})
    assert "memory.limit" in str(raised.value)


def test_units(folder: Path) -> None:
    written = {
        "24GiB": 24 << 30,
        "24GB": 24 * 10**9,
        "1.5 G": 3 << 29,
        "2097152": 1 << 21,
        3e9: 3 * 10**9,
        "none": None,
    }
    assert {limit: tiny_task(folder, memory={"limit": limit}).memory.limit for limit in written} == written


def test_a_limit_below_the_model_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.tasks.sections.memory_section.LEAST_LIMIT", 1)
    task = tiny_task(folder, memory={"limit": max(1000, model_bytes(folder) // 2)})
    with pytest.raises(InputError, match="which the base model takes"):
        tune(task, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def written_task(folder: Path, limit: int, **search: Any) -> Path:
    """A task file on disk, so that messages have lines."""
    path = folder / f"limit{limit}.yaml"
    lines = [
        f"model_name_or_path: {folder / 'model'}",
        f"dataset: {{train: {folder / 'train.jsonl'}}}",
        "num_gpus: 0",
        "memory:",
        f"  limit: {limit}",
        "search:",
        "  space:",
        f"    r: {search.get('r', [2])}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a limit be as small as these models are."""
    monkeypatch.setattr("cohort.tasks.sections.memory_section.LEAST_LIMIT", 1)


@pytest.mark.usefixtures("any_limit")
def test_check_refuses_a_limit_below_the_model_with_its_line(folder: Path) -> None:
    path = written_task(folder, model_bytes(folder) // 2)
    with pytest.raises(InputError, match=r"yaml:5: memory\.limit: found .*more than .*which the base model takes"):
        check_task(load_task(path))


@pytest.mark.usefixtures("any_limit")
def test_check_names_it_beside_what_else_is_wrong(folder: Path) -> None:
    path = written_task(folder, model_bytes(folder) // 2)
    path.write_text(path.read_text() + "lora: {target_modules: [nothing_proj]}\n")
    with pytest.raises(InputError) as raised:
        check_task(load_task(path))
    found = {str(problem.where).rpartition(": ")[2] for problem in raised.value.problems}
    assert found == {"memory.limit", "lora.target_modules"}


@pytest.mark.usefixtures("any_limit")
def test_ranks_whose_state_does_not_fit_are_named_with_their_line(folder: Path, tmp_path: Path) -> None:
    path = written_task(folder, model_bytes(folder) + 40_000, r=[2, 64])
    refused = r"yaml:8: search\.space\.r: found rank 64, whose training state takes"
    with pytest.raises(InputError, match=refused):
        check_task(load_task(path))
    with pytest.raises(InputError, match=refused):
        tune(load_task(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("any_limit")
def test_a_rank_that_is_not_searched_is_named_where_it_is_set(folder: Path) -> None:
    path = written_task(folder, model_bytes(folder) + 40_000)
    text = path.read_text().replace("    r: [2]", "    learning_rate: [0.001]")
    path.write_text(text + "lora:\n  r: 64\n")
    with pytest.raises(InputError, match=r"yaml:10: lora\.r: found rank 64, whose training state takes"):
        check_task(load_task(path))


def limit_that_would_do(text: str) -> str:
    found = re.search(r"[Rr]aise (?:it|memory\.limit) to ([\d.]+ \w+) or more \((?:by an estimate|as passes)", text)
    assert found, text
    return found[1]


@pytest.mark.usefixtures("any_limit")
@pytest.mark.parametrize("beside_the_model", [-10_000, 40_000, 100_000])
def test_a_limit_that_is_too_low_names_one_that_will_do(folder: Path, tmp_path: Path, beside_the_model: int) -> None:
    """Below the model, below the widest adapter's state, and below an adapter and the smallest pass."""

    def task(limit: str | int) -> TaskFile:
        sections: dict[str, Any] = {"search": {"space": {"r": [2, 16]}}, "training": {"max_steps": 2}}
        return tiny_task(folder, memory={"limit": limit}, **sections)

    with pytest.raises(InputError) as raised:
        tune(task(model_bytes(folder) + beside_the_model), tmp_path / "run")
    enough = limit_that_would_do(str(raised.value))
    outlook = check_task(task(enough)).outlook
    # the run measures its passes; the check estimates them from above, and may find no room to predict a time for
    assert outlook.seconds is not None or outlook.time_text.startswith("unknown (an estimate from above")
    tune(task(enough), tmp_path / "run")


@pytest.mark.usefixtures("any_limit")
def test_check_names_a_limit_that_will_do(folder: Path) -> None:
    path = written_task(folder, model_bytes(folder) // 2, r=[2, 64])
    with pytest.raises(InputError) as raised:
        check_task(load_task(path))
    below_the_model = limit_that_would_do(str(raised.value))
    path = written_task(folder, model_bytes(folder) + 40_000, r=[2, 64])
    with pytest.raises(InputError) as raised:
        check_task(load_task(path))
    assert limit_that_would_do(str(raised.value)) == below_the_model, "the same estimate"


def test_another_limit_is_no_other_run(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    class Stopper(Watcher):
        def update(self, progress: Any) -> None:
            if progress.tokens_done > 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(
            tiny_task(folder, **SECTIONS), tmp_path / "run", watcher=Stopper(), options=RunOptions(checkpoint_seconds=0)
        )
    path = tmp_path / "run" / "task.yaml"
    path.write_text(path.read_text().replace("  limit: null", "  limit: 64MiB"))
    resume(tmp_path / "run")
    assert outcome_of(tmp_path / "run") == expected
