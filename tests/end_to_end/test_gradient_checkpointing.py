"""A run whose longest row fits only recomputed: the same bits, said and counted; and errors where nothing helps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cohort.memory.plan as memory_plan
from cohort.core.errors import InputError
from cohort.core.memory_records import GradientCheckpointing
from cohort.engine.train.watching.progress import RunProgress, SilentWatcher
from cohort.engine.tune import RunOptions, resume, tune
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.memory.size_inputs import rank_row_bytes
from cohort.runs.facts import RunFacts
from cohort.runs.reader import RunReader
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.tasks.loading import TaskFile
from tests.cli.tiny_task import write_rows, write_tiny_model
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task

LONG = 400
ROOMY = 1 << 28


class Watcher(SilentWatcher):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.recomputed = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def update(self, progress: RunProgress) -> None:
        self.recomputed = max(self.recomputed, progress.recomputed_passes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of four layers, and rows of a few tokens but for the last one."""
    found = tmp_path_factory.mktemp("gradient_checkpointing")
    write_tiny_model(found / "model", num_layers=4, max_positions=1024)
    write_rows(found / "train.jsonl")
    with (found / "train.jsonl").open("a") as rows:
        rows.write(json.dumps({"prompt": "1+" * (LONG // 2), "completion": "0"}) + "\n")
    write_rows(found / "valid.jsonl", count=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COHORT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield found


def task_for(folder: Path, **memory: Any) -> TaskFile:
    return tiny_task(
        folder,
        dataset={"validation": "valid.jsonl", "max_length": 1024},
        training={"max_steps": 5, "batch_size": 5},
        search={"space": {"learning_rate": [1e-2], "r": [2, 4]}},
        memory=memory,
        early_exit="none",
    )


@pytest.fixture(scope="module")
def roomy(folder: Path) -> Path:
    tune(task_for(folder, limit=ROOMY), folder / "roomy")
    return folder / "roomy"


@pytest.fixture(scope="module")
def expected(roomy: Path) -> Outcome:
    return outcome_of(roomy)


def facts_of(run: Path) -> RunFacts:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts()


@pytest.fixture(scope="module")
def limits(folder: Path, roomy: Path) -> dict[str, int]:
    """Limits by what they are enough for: the longest row recomputed, or not even that."""
    profiles: list[MemoryProfile] = []

    def caught(*arguments: Any, **options: Any) -> MemoryProfile | None:
        profile: MemoryProfile | None = profile_memory(*arguments, **{**options, "known": None})
        if profile is not None:
            profiles.append(profile)
        return profile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "profile_memory", caught)
        preparation = _prepare(task_for(folder, limit=ROOMY, gradient_checkpointing="always"))
    (profile,) = profiles
    longest = int(preparation.inputs.data.train.lengths.max())
    kept, recomputed = profile.pass_bytes(longest), profile.recomputed_bytes(longest)
    assert recomputed < 0.6 * kept
    fixed = preparation.decoder.num_bytes
    state = 16 * rank_row_bytes(preparation.inputs.layout, has_compute_copy=False)

    def limit(passes: float, *, trials: int) -> int:
        return int(fixed + (trials * state + passes) / 0.95)

    # room for both trials: one after the other they would decide in another order
    enough = limit(0.5 * (kept + recomputed), trials=2)
    return {"recomputed": enough, "nothing": limit(0.7 * recomputed, trials=1)}


def _prepare(task: TaskFile) -> Any:
    from cohort.core.clock import SystemClock
    from cohort.prepare.preparation import prepare

    return prepare(task, clock=SystemClock())


def test_a_row_that_fits_only_recomputed_trains_to_the_same_bits(
    folder: Path, tmp_path: Path, roomy: Path, limits: dict[str, int], expected: Outcome
) -> None:
    watcher = Watcher()
    tune(task_for(folder, limit=limits["recomputed"]), tmp_path / "run", watcher=watcher)
    assert outcome_of(tmp_path / "run") == expected
    facts = facts_of(tmp_path / "run")
    assert facts.passes.num_shortages == 0, "it was planned, not found out"
    above = facts.passes.recomputed_above_tokens
    assert above is not None
    assert 64 <= above < LONG
    assert (facts.passes.num_recomputed or 0) > 0
    assert watcher.recomputed > 0
    assert [note for note in watcher.notes if f"of more than {above} tokens do not fit" in note]
    assert any("1 of 25 rows are longer" in note for note in watcher.notes)
    before = facts_of(roomy)
    assert before.passes.num_recomputed == 0
    assert before.passes.recomputed_above_tokens is None
    assert before.sizes.gradient_checkpointing is GradientCheckpointing.AUTO


@pytest.mark.slow  # the first test here has the same bits to show, where it is needed
def test_always_recomputes_every_pass_and_changes_no_bit(
    folder: Path, tmp_path: Path, limits: dict[str, int], expected: Outcome
) -> None:
    watcher = Watcher()
    options = RunOptions(token_budget=256)
    tune(
        task_for(folder, limit=ROOMY, gradient_checkpointing="always"),
        tmp_path / "run",
        watcher=watcher,
        options=options,
    )
    assert outcome_of(tmp_path / "run") == expected
    facts = facts_of(tmp_path / "run")
    assert facts.passes.recomputed_above_tokens == 0
    assert (facts.passes.num_recomputed or 0) >= 5
    assert any("every training pass is recomputed" in note for note in watcher.notes)
    tight = {
        mode: _prepare(
            task_for(folder, limit=limits["recomputed"], gradient_checkpointing=mode)
        ).sizes.executor.token_budget
        for mode in ("auto", "always")
    }
    assert tight["always"] > tight["auto"], "it lets passes be larger"


@pytest.mark.parametrize(
    ("limit", "mode", "words"),
    [
        (
            "recomputed",
            "never",
            "with all its activations kept.*Set memory.gradient_checkpointing: auto, set dataset.max_length to",
        ),
        ("nothing", "auto", "with every layer recomputed.*rows of up to .*Set dataset.max_length to"),
        ("nothing", "always", "with every layer recomputed.*rows of up to .*Set dataset.max_length to"),
    ],
)
def test_a_row_that_cannot_fit_is_said_before_training(
    folder: Path, tmp_path: Path, limits: dict[str, int], limit: str, mode: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        tune(task_for(folder, limit=limits[limit], gradient_checkpointing=mode), tmp_path / "run")
    (problem,) = raised.value.problems
    assert str(problem.where).endswith("dataset.max_length")
    assert f"a row of {LONG + 2} tokens" in problem.found
    assert "train.jsonl:25" in problem.found
    assert not (tmp_path / "run").exists()


def test_a_row_that_was_thought_to_fit_is_recomputed_when_it_does_not(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    expected: Outcome,
) -> None:
    monkeypatch.setattr(memory_plan, "estimate_passes", lambda *_, **__: MemoryNeeds(pass_bytes=lambda tokens: 0.0))
    watcher = Watcher()
    task = task_for(folder, limit=limits["recomputed"], profile=False, margin=0.05)
    tune(task, tmp_path / "run", watcher=watcher, options=RunOptions(token_budget=64, checkpoint_seconds=0))
    assert outcome_of(tmp_path / "run") == expected
    assert any("all passes this large now use gradient checkpointing" in note for note in watcher.notes)
    passes = facts_of(tmp_path / "run").passes
    assert (passes.num_shortages or 0) > 0
    assert (passes.num_recomputed or 0) > 0
    assert (passes.kept_tokens_after_shortage or 0) >= 64
    resume(tmp_path / "run")
    assert outcome_of(tmp_path / "run") == expected


def test_another_word_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"auto \| always \| never"):
        task_for(folder, gradient_checkpointing="sometimes")
