"""TRL's preference configurations as objectives of a task: mapped from TRL's own classes, or refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

import cohort
from cohort.core.errors import InputError
from cohort.integrations.trl import trl_keys

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore")

LORA = LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj"], task_type="CAUSAL_LM")


def config_of(kind: str, **fields: Any) -> Any:
    home = trl if kind in ("DPO", "KTO") else __import__(f"trl.experimental.{kind.lower()}", fromlist=["x"])
    return getattr(home, f"{kind}Config")(output_dir="runs/mine", use_cpu=True, bf16=False, report_to="none", **fields)


def sections_of(kind: str, **fields: Any) -> Any:
    return trl_keys(config_of(kind, **fields), LORA, columns=frozenset({"prompt", "chosen", "rejected"})).sections


@pytest.mark.parametrize(
    ("kind", "fields", "objective"),
    [
        ("DPO", {"beta": 0.3}, {"type": "dpo", "beta": 0.3, "loss_type": "sigmoid"}),
        (
            "DPO",
            {"loss_type": ["robust"], "label_smoothing": 0.1},
            {"type": "dpo", "beta": 0.1, "loss_type": "robust", "label_smoothing": 0.1},
        ),
        ("ORPO", {"beta": 0.2}, {"type": "orpo", "beta": 0.2}),
        (
            "CPO",
            {"loss_type": "simpo", "simpo_gamma": 1.0, "cpo_alpha": 0.0},
            {"type": "simpo", "beta": 0.1, "simpo_gamma": 1.0, "cpo_alpha": 0.0, "label_smoothing": 0.0},
        ),
        (
            "CPO",
            {"label_smoothing": 0.1},
            {"type": "cpo", "beta": 0.1, "cpo_alpha": 1.0, "loss_type": "sigmoid", "label_smoothing": 0.1},
        ),
        (
            "KTO",
            {"desirable_weight": 1.5},
            {"type": "kto", "beta": 0.1, "loss_type": "kto", "desirable_weight": 1.5, "undesirable_weight": 1.0},
        ),
    ],
)
def test_each_configuration_is_an_objective(kind: str, fields: dict[str, Any], objective: dict[str, Any]) -> None:
    sections = sections_of(kind, **fields)
    assert sections["objective"] == objective
    assert sections["dataset"] == {"on_long_rows": "truncate", "max_length": 1024}
    assert sections["training"]["learning_rate"] == config_of(kind).learning_rate
    # TRL's trainers turn dropout off unless they are told not to
    assert sections["lora"]["lora_dropout"] == 0.0
    assert sections_of(kind, disable_dropout=False, **fields)["lora"]["lora_dropout"] == 0.1


@pytest.mark.parametrize(
    ("kind", "fields", "key", "words"),
    [
        ("DPO", {"loss_type": ["sigmoid", "sft"]}, "loss_type", "sigmoid, hinge, ipo, robust"),
        ("DPO", {"label_smoothing": 0.1}, "label_smoothing", "loss_type robust alone"),
        ("DPO", {"ld_alpha": 0.5}, "ld_alpha", "no counterpart"),
        ("DPO", {"sync_ref_model": True}, "sync_ref_model", "no counterpart"),
        ("CPO", {"alpha": 0.2}, "alpha", "no counterpart"),
    ],
)
def test_what_cannot_be_honoured_is_refused(kind: str, fields: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        sections_of(kind, **fields)
    (problem,) = caught.value.problems
    assert str(problem.where) == f"{kind}Config: {key}"
    assert words in str(problem)


def test_a_dpo_script_becomes_a_sweep(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "chosen": "yes", "rejected": "no"} for n in range(20)]
    (tmp_path / "model").mkdir()
    space = {"beta": [0.05, 0.1], "learning_rate": [1e-5, 1e-4]}
    config = config_of("DPO", precompute_ref_log_probs=True)
    with pytest.warns(UserWarning, match="precompute_ref_log_probs=True"):
        task = cohort.Task.from_trl(config, LORA, space, dataset=rows, model=tmp_path / "model")
    assert task.file.objective.type == "dpo"
    assert set(task.file.search.space) == set(space)
    assert task.name == "mine"
