"""One task in, the best adapter out: what a run leaves behind, for every sampler, rule and way to say how long."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError, RunStateError
from cohort.engine.tune import resume, tune
from cohort.models.weights import load_decoder
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.tuning.trial_status import TrialStatus
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    tune(tiny_task(folder), folder / "run")
    return folder / "run"


def run_of(folder: Path, where: Path, **sections: object) -> Path:
    tune(tiny_task(folder, **sections), where / "run")
    return where / "run"


def statuses(run: Path) -> dict[int, tuple[TrialStatus, str]]:
    with RunReader.open(run / "run.db") as reader:
        return {trial.trial_id: (trial.status, trial.reason) for trial in reader.trials()}


def test_the_run_directory_is_complete(run: Path) -> None:
    for name in ("task.yaml", "run.db", "report.html", "results.csv", "metrics.jsonl"):
        assert (run / name).stat().st_size > 0, name
    for name in ("adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"):
        assert (run / "best" / name).stat().st_size > 0, name
    assert [path for path in run.rglob("*") if "partial" in path.name] == []
    assert (run / "report.html").read_text().rstrip().endswith("</html>")
    card = (run / "best" / "README.md").read_text()
    assert "learning_rate" in card


def test_best_gives_the_same_logits_in_peft(folder: Path, run: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from cohort.adapters.adapter_state import AdapterState
    from cohort.adapters.bank import AdapterBank
    from cohort.adapters.layout import AdapterLayout
    from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
    from cohort.data.packing import SlotSample, pack
    from cohort.data.tokenised import Sample
    from cohort.models.attention import PackedAttention

    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = torch.randint(2, 200, (40,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = base(ids[None]).logits[0].clone()
        theirs = PeftModel.from_pretrained(base, run / "best").eval()(ids[None]).logits[0]
    decoder = load_decoder(folder / "model", dtype="float32", device="cpu")
    adapter = read_adapter(run / "best")
    layout = AdapterLayout({name: decoder.linears[name] for name in adapter.modules})
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=adapter.spec.r)
    slot = bank.insert(adapter.spec, AdapterState(weights=rank_rows_from_peft(layout, adapter)))
    sample = Sample(sample_id=0, tokens=ids.int().numpy(), trained=torch.ones(40, dtype=torch.bool).numpy())
    batch = pack([SlotSample(slot=slot, sample=sample)], num_slots=1, device="cpu")
    with torch.no_grad():
        hidden_TD = decoder.forward(
            batch.tokens_T,
            positions_T=batch.positions_T,
            attention=PackedAttention(batch.sequence_offsets),
            lora=bank.context(batch.segments),
        )
        ours = decoder.head.forward(hidden_TD)[:40]
    assert (theirs - plain).abs().max() > 1e-3, "the adapter does something"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_tables_agree_with_the_log(run: Path) -> None:
    with RunReader.open(run / "run.db") as reader:
        results = read_results(reader)
        events = reader.log.steps(), reader.log.evaluations()
    rows = list(csv.DictReader((run / "results.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == [entry.trial.trial_id for entry in results.ranked]
    losses = [float(row["eval_loss"]) for row in rows]
    assert losses == sorted(losses)
    assert results.best is not None
    assert int(rows[0]["trial"]) == results.best.trial_id
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == len(events[0])
    assert sum("eval_loss" in line for line in lines) == len(events[1])
    assert results.base_value is not None
    assert results.best.best_value is not None
    assert results.best.best_value < results.base_value


def test_exits_are_recorded_with_their_numbers(run: Path) -> None:
    found = statuses(run)
    assert len(found) == 6
    # warm-up parks six trials and keeps ceil(0.5 * 6)
    assert sum(reason == "underperforming" for _, reason in found.values()) == 3
    assert sum(status is TrialStatus.COMPLETED for status, _ in found.values()) == 3
    with RunReader.open(run / "run.db") as reader:
        stops = [entry.decision for entry in reader.log.decisions() if entry.decision.kind.value == "stop"]
    assert len(stops) == 3
    for decision in stops:
        assert decision.rule
        assert all(math.isfinite(value) for value in decision.numbers.values())
        assert {"validation_loss", "rank"} & set(decision.numbers), decision.numbers


def test_the_winner_has_the_bits_that_it_has_in_the_full_grid(folder: Path, run: Path, tmp_path: Path) -> None:
    with_exits, full = outcome_of(run), outcome_of(run_of(folder, tmp_path, early_exit="none"))
    for part in ("steps", "evaluations"):
        own = {key: bits for key, bits in with_exits[part].items() if key[0] == with_exits["best"]}
        assert own
        assert own.items() <= full[part].items()


@pytest.mark.parametrize("rule", ["patterns", "patience", "halving", "asha", "hyperband", "median", "none"])
def test_every_rule_runs_through(folder: Path, tmp_path: Path, rule: str) -> None:
    section = "none" if rule == "none" else {"rule": rule, "warmup_fraction": 0.25, "startup_trials": 2}
    run = run_of(folder, tmp_path, early_exit=section)
    found = statuses(run)
    assert all(status in (TrialStatus.COMPLETED, TrialStatus.STOPPED) for status, _ in found.values())
    completed = sum(status is TrialStatus.COMPLETED for status, _ in found.values())
    if rule == "none":
        assert completed == 6
    if rule in ("halving", "asha", "hyperband", "patterns"):
        assert completed < 6, "a rule that compares trials stops some"
    assert (run / "best" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_samplers(folder: Path, tmp_path: Path, sampler: str) -> None:
    space = {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}, "r": [2, 4], "batch_size": [1, 2]}
    search = {"sampler": sampler, "trials": 5, "space": space}
    task = tiny_task(folder, search=search, training={"max_steps": 4})
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        trials = reader.trials()
    assert len(trials) == 5
    assert len({trial.parameters["learning_rate"] for trial in trials}) == 5
    tune(task, tmp_path / "again")
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "again")


def test_tpe_learns_from_the_trials_that_ended(folder: Path, tmp_path: Path) -> None:
    # from 1e-7 nothing is learnt; the best rates are those near the upper end
    space = {"learning_rate": {"min": 1e-7, "max": 3e-2, "log": True}, "r": [2, 4], "batch_size": [1, 2]}
    search = {"sampler": "tpe", "trials": 40, "space": space}
    run = run_of(folder, tmp_path, search=search, training={"max_steps": 10}, early_exit={"warmup_fraction": 0.3})
    with RunReader.open(run / "run.db") as reader:
        trials, positions = reader.trials(), reader.log.proposal_positions()
        ended = sorted(entry.position for entry in reader.log.decisions() if entry.decision.kind.value == "stop")
    assert len(trials) == 40
    first = [trial for trial in trials if positions[trial.trial_id] <= 14]
    later = [trial for trial in trials if positions[trial.trial_id] > 14]
    assert len(first) == 14
    assert min(positions[trial.trial_id] for trial in later) > ended[0]
    rates = [[math.log10(float(str(trial.parameters["learning_rate"]))) for trial in part] for part in (first, later)]
    # uniform draws would have their middle at 1e-4.2; learning moves it to where losses fell
    assert statistics.median(rates[1]) > statistics.median(rates[0]) + 0.5
    assert all(status in (TrialStatus.COMPLETED, TrialStatus.STOPPED) for status, _ in statuses(run).values())


def test_exact_match_chooses_the_best_through_packed_generation(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder, tmp_path, evaluation={"metric": "exact_match", "max_new_tokens": 3})
    with RunReader.open(run / "run.db") as reader:
        results = read_results(reader)
        measured = reader.log.evaluations()
    assert results.metric.name == "exact_match"
    assert results.metric.maximize
    assert all(0 <= found.metrics["exact_match"] <= 1 for found in measured)
    assert results.base_value is not None
    assert results.best is not None
    # three tokens rarely answer a sum: many evaluations score the same, and the loss says which of them is better
    tied = [found for found in measured if found.metrics["exact_match"] == results.best.best_value]
    assert results.best.best_loss == min(found.validation_loss for found in tied)
    header = (run / "results.csv").read_text().splitlines()[0]
    assert "eval_exact_match" in header


def test_epochs_count_the_rows(folder: Path, tmp_path: Path) -> None:
    # 24 rows, a quarter of them put aside: 18 train
    training = {"num_train_epochs": 1.5, "max_steps": None, "batch_size": 4}
    run = run_of(folder, tmp_path, training=training, search={"space": {}}, early_exit="none")
    with RunReader.open(run / "run.db") as reader:
        (trial,) = reader.trials()
    assert trial.planned_steps == math.ceil(1.5 * math.ceil(18 / 4))
    assert trial.steps_done == trial.planned_steps


def test_a_validation_file(folder: Path, tmp_path: Path) -> None:
    rows = (folder / "train.jsonl").read_text().splitlines()
    (tmp_path / "validation.jsonl").write_text("\n".join(rows[:5]))
    dataset = {"validation": str(tmp_path / "validation.jsonl")}
    run = run_of(folder, tmp_path, dataset=dataset, training={"max_steps": 2})
    with RunReader.open(run / "run.db") as reader:
        assert reader.facts().inputs.num_train_rows == 24


def _without(outcome: Outcome, trial_id: int) -> dict[tuple[int, int], object]:
    steps: dict[tuple[int, int], object] = outcome["steps"]
    return {key: value for key, value in steps.items() if key[0] != trial_id}


def test_a_nan_trial_ends_as_non_finite_and_leaves_the_others_their_bits(folder: Path, tmp_path: Path) -> None:
    healthy = run_of(folder, tmp_path / "a", search={"space": {"learning_rate": [1e-3, 1e-2]}}, early_exit="none")
    sick = run_of(folder, tmp_path / "b", search={"space": {"learning_rate": [1e-3, 1e-2, 1e30]}}, early_exit="none")
    assert statuses(sick)[2] == (TrialStatus.STOPPED, "non-finite")
    a, b = outcome_of(healthy), outcome_of(sick)
    assert _without(b, 2) == a["steps"]
    for name in ("trials/0000", "trials/0001", "best"):
        file = f"{name}/adapter_model.safetensors"
        assert a["adapters"][file] == b["adapters"][file]


def test_all_trials_non_finite(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    task = tiny_task(folder, search={"space": {"learning_rate": [1e29, 1e30]}})
    for act in (lambda: tune(task, run), lambda: resume(run)):
        with pytest.raises(RunStateError, match=r"no trial had a finite validation loss.*lower the learning rates"):
            act()
    assert {reason for _, reason in statuses(run).values()} == {"non-finite"}
    for name in ("results.csv", "metrics.jsonl", "report.html"):
        assert (run / name).is_file()
    assert not (run / "best").exists()


def test_wrong_inputs_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, lora={"target_modules": ["q_prj"]})
    with pytest.raises(InputError, match="q_prj"):
        tune(task, tmp_path / "run")
    assert not (tmp_path / "run").exists()
