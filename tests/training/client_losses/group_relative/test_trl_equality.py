"""Loss with its KL, derivative of each token, advantages and gradients of each loss type are those of TRL.

TRL scores the same answers with the same adapter: its own code computes old and reference log-probabilities,
advantages, masks and divisors. The answers are given to it where it would generate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
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
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.weights import load_decoder
from cohort.training.client_losses.group_relative import GROUP_LOSSES
from cohort.training.client_losses.group_relative.group_loss import NUMBERS, answer_shares
from cohort.training.client_training.datum import Datum, TokenLoss
from cohort.training.client_training.token_passes import SlotDatum, train_tokens
from cohort.training.optimizers.kinds.adamw import AdamW
from tests.training.small_models import VOCABULARY, save_llama

trl = pytest.importorskip("trl")

pytestmark = pytest.mark.filterwarnings("ignore")

GROUPS, SIZE, LONGEST, EOS, PAD = 3, 4, 9, 94, 95
CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo high, delta and KL": {"epsilon_high": 0.28, "delta": 1.1, "beta": 0.3},
    "grpo plain KL": {"beta": 0.3, "use_bias_correction_kl": False},
    "dr_grpo": {"scale_rewards": "none", "beta": 0.1},
    "dapo": {"epsilon_high": 0.28},
    "dapo masked": {"mask_truncated_completions": True, "scale_rewards": "batch"},
    "grpo masked": {"mask_truncated_completions": True},
    "gspo": {"epsilon": 0.02, "epsilon_high": 0.03},
    "gspo KL": {"epsilon": 0.2, "beta": 0.2},
    "cispo": {"epsilon_high": 1.05},
    "cispo KL": {"epsilon_high": 1.05, "beta": 0.2},
    "dapo on policy": {"num_iterations": 1},
    "gspo on policy": {"num_iterations": 1, "beta": 0.1},
}


@dataclass(kw_only=True, eq=False)
class Scored:
    """TRL's trainer, and what it last computed of the answers."""

    trainer: Any
    directory: Path
    answers: list[list[int]]
    logps: list[Tensor] = field(default_factory=list)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    return scored_by("GRPO", tmp_path_factory.mktemp("model"))


def scored_by(kind: str, directory: Path) -> Scored:
    """Return TRL's trainer of a kind, which is given its answers."""
    from datasets import Dataset

    save_llama(directory, num_layers=1)
    vocabulary = {f"t{token}": token for token in range(VOCABULARY - 2)} | {"<eos>": EOS, "<pad>": PAD}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rng = random.Random(3)
    prompts = [" ".join(f"t{rng.randrange(90)}" for _ in range(rng.randint(2, 7))) for _ in range(GROUPS)]
    # some end, some are cut off
    answers = [
        [rng.randrange(90) for _ in range(length - 1)] + ([EOS] if place % 3 else [1])
        for place, length in enumerate(rng.choices(range(1, LONGEST + 1), k=GROUPS * SIZE))
    ]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = getattr(trl, f"{kind}Trainer")(
        model=get_peft_model(model, lora),
        reward_funcs=[last_token, nothing_for_short],
        args=getattr(trl, f"{kind}Config")(
            output_dir=str(directory / "trl"),
            per_device_train_batch_size=GROUPS * SIZE,
            num_generations=SIZE,
            max_completion_length=LONGEST,
            reward_weights=[1.0, 0.5],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            beta=0.0,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"),
    )
    found = Scored(trainer=trainer, directory=directory, answers=answers)
    given: Any = answers if kind == "RLOO" else (answers, None)
    trainer._generate_single_turn = lambda *_, **__: given
    priced = trainer._get_per_token_logps_and_entropies

    def kept(*arguments: Any, **options: Any) -> Any:
        logps, *rest = priced(*arguments, **options)
        if logps.requires_grad:
            logps.retain_grad()
        found.logps.append(logps)
        return logps, *rest

    trainer._get_per_token_logps_and_entropies = kept
    trainer.model.train()
    return found


def last_token(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [ids[0] / 90 for ids in completion_ids]


def nothing_for_short(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [None if len(ids) < 3 else float(len(ids) % 2) for ids in completion_ids]


def adapter_of(trainer: Any) -> dict[str, torch.nn.Parameter]:
    return {name: own for name, own in trainer.model.named_parameters() if ".default." in name}


def redraw(trainer: Any, *, seed: int) -> None:
    """Draw both factors of the adapter; ``seed`` 2 is not far from seed 1, so ratios are near 1 on both sides."""
    generator = torch.Generator().manual_seed(1)
    near = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for own in adapter_of(trainer).values():
            own.copy_(torch.randn(own.shape, generator=generator) * 0.15)
            if seed != 1:
                own.add_(torch.randn(own.shape, generator=near) * 0.03)


def flat(layout: AdapterLayout, parameters: dict[str, Any], *, gradient: bool) -> Tensor:
    """Return PEFT's tensors, or their gradients, as rank rows [r, D]."""
    rows_rD = torch.zeros(4, layout.width)
    for name, columns in layout.columns.items():
        own = [parameters[f"base_model.model.{name}.lora_{side}.default.weight"] for side in "AB"]
        a, b = [each.grad if gradient else each.detach() for each in own]
        rows_rD[:, columns.a], rows_rD[:, columns.b] = a, b.T
    return rows_rD


def a_datum(batch: dict[str, Tensor], place: int, *, length: int, advantage: float, share: float) -> Datum:
    """Return one of TRL's answers with its prompt, all targets but those of the answer without a weight."""
    prompt = batch["prompt_ids"][place][batch["prompt_mask"][place].bool()].numpy()
    tokens = np.concatenate([prompt, batch["completion_ids"][place, :length].numpy()])

    def of_answer(values: Any) -> Any:
        found = np.zeros((len(tokens) - 1, 1))
        found[len(prompt) - 1 :, 0] = values
        return found

    old, reference = batch.get("old_per_token_logps"), batch.get("ref_per_token_logps")
    return Datum(
        tokens=tokens[:-1],
        targets=tokens[1:, None],
        inputs={
            "logprobs": of_answer(0.0 if old is None else old[place, :length].numpy()),
            "ref_logprobs": of_answer(0.0 if reference is None else reference[place, :length].numpy()),
            "advantages": of_answer(advantage),
            "weights": of_answer(share),
        },
    )


def test_each_loss_type_has_a_case() -> None:
    # TRL has no REINFORCE++, and another trainer for RLOO
    assert {case.split()[0] for case in CASES} == set(GROUP_LOSSES) - {"rloo", "reinforce_plus_plus"}


def test_rloo_is_that_of_trls_own_trainer(tmp_path: Path) -> None:
    scored = scored_by("RLOO", tmp_path)
    trainer = scored.trainer
    redraw(trainer, seed=1)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[n // SIZE] for n in range(GROUPS * SIZE)])
    # TRL keeps the sum of an answer alone; ours are those of its tokens, from the same pass
    old_logps = scored.logps[0].detach()
    redraw(trainer, seed=2)
    scored.logps.clear()
    their_loss = trainer._compute_loss(trainer.model, batch)
    their_loss.backward()
    trainer.mask_truncated_completions = False
    (logps,) = scored.logps
    trainer.scale_rewards, trainer.args.num_iterations = "none", 2
    entries = our_data(scored, "rloo", {}, {**batch, "old_per_token_logps": old_logps})
    assert loss_of(entries, scored.answers, logps) == pytest.approx(float(their_loss.detach()), rel=1e-5)
    assert_derivatives(entries, scored.answers, logps)


def loss_of_trl(scored: Scored, kind: str, options: dict[str, Any]) -> tuple[dict[str, Tensor], float, Tensor]:
    """Return TRL's batch of the answers, its loss, and its log-probabilities with their derivatives."""
    trainer, args = scored.trainer, scored.trainer.args
    for key, default in (("delta", None), ("use_bias_correction_kl", True), ("num_iterations", 2)):
        setattr(args, key, options.get(key, default))
    trainer.num_iterations = args.num_iterations
    trainer.beta, trainer.scale_rewards = options.get("beta", 0.0), options.get("scale_rewards", "group")
    trainer.epsilon_low = options.get("epsilon", 0.2)
    trainer.epsilon_high = options.get("epsilon_high", trainer.epsilon_low)
    trainer.mask_truncated_completions = options.get("mask_truncated_completions", False)
    trainer.loss_type = "grpo" if kind == "gspo" else kind
    trainer.importance_sampling_level = "sequence" if kind == "gspo" else "token"
    trainer.current_gradient_accumulation_steps = 1
    redraw(trainer, seed=1)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[n // SIZE] for n in range(GROUPS * SIZE)])
    if args.num_iterations > 1:
        redraw(trainer, seed=2)
    scored.logps.clear()
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    (logps,) = scored.logps
    return batch, float(loss.detach()), logps


def our_data(scored: Scored, kind: str, options: dict[str, Any], batch: dict[str, Tensor]) -> list[SlotDatum]:
    """Return the same answers as data of ours, with advantages from the rewards that the functions give."""
    group_loss, trainer = GROUP_LOSSES[kind], scored.trainer
    both = np.array([own(scored.answers) for own in (last_token, nothing_for_short)], dtype=np.float64)
    # None becomes NaN
    rewards = np.where(np.isnan(both).all(axis=0), np.nan, np.nansum(both * [[1.0], [0.5]], axis=0))
    advantages = group_loss.advantages(rewards.reshape(GROUPS, SIZE), scale=trainer.scale_rewards).ravel()
    assert advantages == pytest.approx(batch["advantages"].numpy(), abs=1e-5)
    lengths = [len(own) for own in scored.answers]
    left_out = [trainer.mask_truncated_completions and own[-1] != EOS for own in scored.answers]
    shares = answer_shares(group_loss, lengths, left_out=left_out, max_completion_length=LONGEST)
    numbers = {key: float(options.get(key, default)) for key, default in NUMBERS.items()}
    numbers["on_policy"] = float(trainer.args.num_iterations == 1)
    loss = TokenLoss(objective=group_loss.objective, numbers=numbers)
    return [
        SlotDatum(
            slot=0,
            loss=loss,
            datum=a_datum(batch, place, length=lengths[place], advantage=advantages[place], share=shares[place]),
        )
        for place in range(GROUPS * SIZE)
    ]


@pytest.mark.parametrize("case", CASES)
def test_loss_advantages_and_gradients_are_trls(scored: Scored, case: str) -> None:
    kind, options = case.split()[0], CASES[case]
    batch, their_loss, their_logps = loss_of_trl(scored, kind, options)
    entries = our_data(scored, kind, options, batch)
    decoder = load_decoder(scored.directory, dtype="float32", device="cpu")
    layout = AdapterLayout(linear_shapes(decoder.config))
    bank = AdapterBank(
        layout, num_slots=1, num_rank_rows=8, device=torch.device("cpu"), dtype=torch.float32, moments=AdamW.moments
    )
    parameters = adapter_of(scored.trainer)
    weights = flat(layout, parameters, gradient=False)
    slot = bank.insert(AdapterSpec(r=4, lora_alpha=8.0), AdapterState(weights=weights))
    results = train_tokens(decoder, bank, entries, fresh_slots=[slot])

    assert sum(result.loss for result in results) == pytest.approx(their_loss, rel=1e-5, abs=1e-6)
    gradient = flat(layout, parameters, gradient=True)
    away = torch.linalg.vector_norm(bank.grads_RD[bank.rank_rows(slot)] - gradient)
    assert float(away / torch.linalg.vector_norm(gradient)) <= 1e-5
    assert_derivatives(entries, scored.answers, their_logps)


def terms_of(entry: SlotDatum, leaf: Tensor) -> Tensor:
    inputs = {name: torch.from_numpy(own.ravel()).float() for name, own in entry.datum.inputs.items()}
    return entry.loss.objective.terms(leaf, inputs=inputs, numbers=entry.loss.numbers, offsets=[0, len(leaf)])


def leaf_of(entry: SlotDatum, answer: list[int], logps: Tensor) -> Tensor:
    """Return TRL's log-probabilities of an answer at the targets of ours."""
    leaf = torch.zeros(len(entry.datum.tokens))
    leaf[-len(answer) :] = logps[: len(answer)].detach()
    return leaf.requires_grad_()


def loss_of(entries: list[SlotDatum], answers: list[list[int]], their_logps: Tensor) -> float:
    rows = zip(entries, answers, their_logps, strict=True)
    return sum(float(terms_of(entry, leaf_of(entry, answer, logps)).sum()) for entry, answer, logps in rows)


def assert_derivatives(entries: list[SlotDatum], answers: list[list[int]], their_logps: Tensor) -> None:
    """Compare the derivative in each token's log-probability, from TRL's own log-probabilities."""
    for entry, answer, logps, slopes in zip(entries, answers, their_logps, their_logps.grad, strict=True):  # type: ignore[arg-type]
        size, leaf = len(answer), leaf_of(entry, answer, logps)
        (own_slopes,) = torch.autograd.grad(terms_of(entry, leaf).sum(), leaf)
        assert own_slopes[-size:].numpy() == pytest.approx(slopes[:size].numpy(), rel=1e-5, abs=1e-7)
