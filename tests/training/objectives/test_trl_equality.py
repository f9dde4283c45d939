"""Losses, gradients, metrics and trained weights of each objective are those of TRL's trainers on the same batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.data.tokenised import TokenisedRows
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.objectives.objective import Objective
from cohort.training.optimizers.kinds.adamw import AdamW
from cohort.training.reference.reference_logps import answer_log_probs
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec, TrialState
from tests.training.small_models import VOCABULARY, save_llama

trl = pytest.importorskip("trl")

# TRL warns of what it will change, of what is experimental, and of CPUs
pytestmark = pytest.mark.filterwarnings("ignore")

COUNT, STEPS, RATE = 4, 10, 1e-2
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: TRL's trainer, its configuration, our values where they are called otherwise
    "dpo": ("DPO", {"beta": 0.3}, {}),
    "dpo hinge": ("DPO", {"loss_type": ["hinge"], "beta": 0.2}, {"loss_type": "hinge"}),
    "dpo ipo": ("DPO", {"loss_type": ["ipo"]}, {"loss_type": "ipo"}),
    "dpo robust": ("DPO", {"loss_type": ["robust"], "label_smoothing": 0.2}, {"loss_type": "robust"}),
    "orpo": ("ORPO", {"beta": 0.5}, {}),
    "cpo": ("CPO", {"label_smoothing": 0.1, "cpo_alpha": 0.7}, {}),
    "cpo ipo": ("CPO", {"loss_type": "ipo", "cpo_alpha": 0.0}, {}),
    "simpo": ("CPO", {"loss_type": "simpo", "simpo_gamma": 0.8, "beta": 2.0, "cpo_alpha": 0.3}, {}),
    "kto": ("KTO", {"beta": 0.4, "desirable_weight": 0.8, "undesirable_weight": 1.2}, {}),
    "kto without kl": ("KTO", {"loss_type": "apo_zero_unpaired"}, {}),
}


def words(generator: random.Random, fewest: int, most: int) -> str:
    return "".join(f"t{generator.randrange(VOCABULARY - 2)} " for _ in range(generator.randint(fewest, most)))


def trainer_of(kind: str, options: dict[str, Any], *, directory: Path, dtype: torch.dtype) -> Any:
    """Return TRL's trainer with an adapter whose factors are both random, over a few random rows."""
    from datasets import Dataset

    # the experimental ones are not among the names of the package
    home = trl if kind in ("DPO", "KTO") else __import__(f"trl.experimental.{kind.lower()}", fromlist=["x"])
    vocabulary = {f"t{token}": token for token in range(VOCABULARY - 2)} | {"<eos>": 94, "<pad>": 95}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    generator = random.Random(3)
    rows: list[dict[str, Any]] = [
        {"prompt": words(generator, 2, 9), "chosen": words(generator, 1, 8), "rejected": words(generator, 1, 8)}
        for _ in range(COUNT)
    ]
    if kind == "KTO":
        rows = [{"prompt": r["prompt"], "completion": r["chosen"], "label": n % 3 > 0} for n, r in enumerate(rows)]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config, autocast_adapter_dtype=False)
    trainer = getattr(home, f"{kind}Trainer")(
        model=model,
        args=getattr(home, f"{kind}Config")(
            output_dir=str(directory / "trl"),
            per_device_train_batch_size=COUNT,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            max_length=64,
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"),
    )
    # afterwards: the trainer has kept what it was given for a reference, which is the base model
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trained_parameters(trainer.model).values():
            parameter.normal_(std=0.15)
    return trainer


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: own for name, own in model.named_parameters() if ".default." in name}


def rows_of(batch: dict[str, Any]) -> TokenisedRows:
    """Return the rows of TRL's own batch, pair by pair."""
    if "chosen_labels" in batch:
        pieces = [
            (
                batch[f"{side}_input_ids"][row],
                batch[f"{side}_labels"][row] != -100,
                batch[f"{side}_attention_mask"][row],
            )
            for row in range(COUNT)
            for side in ("chosen", "rejected")
        ]
    else:
        count = len(batch["input_ids"])
        # all chosen come first
        places = [row + side for row in range(COUNT) for side in range(0, count, COUNT)]
        pieces = [
            (batch["input_ids"][row], batch["completion_mask"][row].bool(), batch["attention_mask"][row])
            for row in places
        ]
    tokens = [ids[mask.bool()].numpy().astype(np.int32) for ids, _, mask in pieces]
    trained = [own[mask.bool()].numpy() for _, own, mask in pieces]
    lengths = np.array([len(own) for own in tokens])
    return TokenisedRows(
        tokens_T=np.concatenate(tokens),
        trained_T=np.concatenate(trained),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompts=("",) * len(tokens),
        references=("",) * len(tokens),
        sources=("trl",) * len(tokens),
        fingerprint="trl",
        answer_starts=np.array([int(own.argmax()) for own in trained], dtype=np.int64),
        labels=batch["label"].bool().numpy() if "label" in batch else np.empty(0, dtype=np.bool_),
    )


class Watched(AdamW):
    """AdamW that keeps the first gradient it was given."""

    gradient: Tensor | None = None

    def update(self, bank: AdapterBank, residents: Any) -> Tensor:
        (resident,) = residents
        assert isinstance(resident, Resident)
        if self.gradient is None:
            self.gradient = bank.grads_RD[bank.rank_rows(resident.slot)].clone()
        return super().update(bank, residents)


def flat(layout: AdapterLayout, of: Callable[[str], Tensor]) -> Tensor:
    """Return PEFT's tensors as rank rows [r, D]."""
    rows_rD = torch.zeros(4, layout.width, dtype=torch.float64)
    for name, columns in layout.columns.items():
        prefix = f"base_model.model.{name}.lora_"
        rows_rD[:, columns.a] = of(f"{prefix}A.default.weight").double()
        rows_rD[:, columns.b] = of(f"{prefix}B.default.weight").double().T
    return rows_rD


def distance(found: Tensor, expected: Tensor) -> float:
    """Return how far ``found`` is from ``expected``, relative to its length."""
    return float(torch.linalg.vector_norm(found.double() - expected) / torch.linalg.vector_norm(expected))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("model")
    save_llama(found, num_layers=1)
    return found


def compared(case: str, directory: Path, *, dtype: str, steps: int) -> dict[str, Any]:
    """Train both and return what they found."""
    kind, options, ours = CASES[case]
    trainer = trainer_of(kind, options, directory=directory, dtype=getattr(torch, dtype))
    batch = trainer.data_collator([trainer.train_dataset[row] for row in range(COUNT)])
    decoder = load_decoder(directory, dtype=dtype, device="cpu")
    rows = rows_of(batch)
    objective: Objective = OBJECTIVES[case.split()[0]].with_values({**options, **ours})
    samples = [rows.sample(row) for row in range(len(rows))]
    asked = answer_log_probs(decoder, samples, token_budget=40, too_large=lambda entry, said: MemoryError(said))
    rows = type(rows)(**{**vars(rows), "reference_logps": np.array(asked)})
    optimizer = Watched()
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=60, evaluation_token_budget=60),
        dtype=decoder.dtype,
        optimizer=optimizer,
    )
    parameters = trained_parameters(trainer.model)
    layout = executor.bank.layout
    start = flat(layout, lambda name: parameters[name].detach()).to(decoder.dtype)
    spec = TrialSpec(
        trial_id=0,
        seed=0,
        adapter=AdapterSpec(r=4, lora_alpha=8.0),
        learning_rate=RATE,
        batch_size=COUNT,
        num_steps=steps,
        objective=objective,
    )
    executor.load(spec, TrialState(adapter=AdapterState(weights=start)))
    evaluated = executor.evaluate([0], rows=rows, row_ids=range(COUNT))[0]
    losses = [executor.step()[0].loss for _ in range(steps)]
    theirs = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=spec.weight_decay)
    their_losses, their_gradient = [], None
    trainer.model.train()
    for _ in range(steps):
        theirs.zero_grad()
        loss = trainer.compute_loss(trainer.model, {**batch})
        loss.backward()
        their_losses.append(float(loss))
        if their_gradient is None:
            their_gradient = flat(layout, lambda name: parameters[name].grad)  # type: ignore[arg-type,return-value]
        torch.nn.utils.clip_grad_norm_(parameters.values(), spec.max_grad_norm)
        theirs.step()
    logged = trainer._metrics if hasattr(trainer, "_metrics") else trainer._stored_metrics
    return {
        "losses": (losses, their_losses),
        "evaluated": evaluated,
        "gradient": (optimizer.gradient, their_gradient),
        "weights": (executor.weights(0), flat(layout, lambda name: parameters[name].detach())),
        "logged": logged["train"],
    }


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """KTO's mismatched rows depend on the order within a batch."""
    monkeypatch.setattr(SampleOrder, "permutation", lambda self, epoch: np.arange(self.num_samples))


@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_metrics_are_trls(directory: Path, case: str) -> None:
    # float32 sums in another order: padded there, sequence by sequence here
    found = compared(case, directory, dtype="float32", steps=1)
    (loss,), (their_loss,) = found["losses"]
    assert loss == pytest.approx(their_loss, rel=1e-5)
    assert found["evaluated"].loss == pytest.approx(their_loss, rel=1e-5)
    assert distance(*found["gradient"]) <= 1e-5
    metrics, logged = found["evaluated"].metrics, found["logged"]
    assert metrics["reward_margin"] == pytest.approx(logged["rewards/margins"][0], rel=1e-5, abs=1e-6)
    if "rewards/accuracies" in logged:
        assert metrics["reward_accuracy"] == logged["rewards/accuracies"][0]


@pytest.mark.parametrize("case", ["dpo", "orpo", "cpo", "simpo", "kto"])
def test_weights_after_ten_steps_are_trls(directory: Path, case: str) -> None:
    # in float64, as AdamW turns the rounding of small gradients into steps; TRL's head and ORPO round to float32 inside
    found = compared(case, directory, dtype="float64", steps=STEPS)
    losses, their_losses = found["losses"]
    tolerance = 1e-9 if case == "simpo" else 2e-5
    assert losses == pytest.approx(their_losses, rel=tolerance)
    assert distance(*found["weights"]) <= tolerance
