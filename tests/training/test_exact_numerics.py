"""Exact numerics: what is switched and refused; on a GPU, random packs against the trial alone, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.adapter_digest import adapter_digest
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import serialised_weights
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.tokenised import ReferenceFiles, TokenisedRows
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.segments import SegmentTable
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.invariants.test_packing_changes_nothing import COMPARED, COMPARED_VALIDATION, OF_VARIANTS, SUBJECTS
from tests.training.invariants.variants import VARIANTS
from tests.training.small_models import random_rows, save_llama, save_qwen2

ROWS = random_rows(40, seed=3)
STEPS = 50


def trial(trial_id: int, *, r: int, batch_size: int, dropout: float = 0.0, use_dora: bool = False) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=100 + trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout, use_dora=use_dora),
        learning_rate=3e-3,
        batch_size=batch_size,
        num_steps=1000,
    )


def executor_of(
    decoder: Decoder,
    specs: Sequence[TrialSpec],
    *,
    token_budget: int = 8192,
    graph_tokens: int = 0,
    numerics: Numerics = Numerics.EXACT,
    rows: TokenisedRows = ROWS,
) -> Executor:
    return Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(specs),
            num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
            token_budget=token_budget,
            evaluation_token_budget=token_budget,
            graph_tokens=graph_tokens,
            numerics=numerics,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )


def test_an_executor_switches_the_products_of_its_decoder(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_llama(tmp_path, num_layers=1)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    specs = [trial(0, r=4, batch_size=1)]
    # a CPU is exact as it is
    assert not executor_of(decoder, specs).bank.is_exact
    with use_backend(Backend.TRITON):
        executor = executor_of(decoder, specs)
        assert executor.bank.is_exact
        products: list[Any] = list(decoder.products)
        blocks: list[Any] = [layer.mlp for layer in decoder.layers]
        assert len(products) == 5
        assert all(product.is_exact and not product.can_accumulate for product in products)
        assert all(block.is_composed for block in blocks)
        assert not executor_of(decoder, specs, numerics=Numerics.FAST).bank.is_exact
        assert not any(product.is_exact for product in products)
        assert not any(block.is_composed for block in blocks)


def test_decoding_takes_the_launches_of_exact_numerics_however_few_its_rows_are(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_llama(tmp_path, num_layers=1)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    segments = SegmentTable.from_samples([1], slots=[0], num_slots=1, num_rows=16, multiplies_slots=True)
    with use_backend(Backend.TRITON):
        for numerics in Numerics:
            tables = (
                executor_of(decoder, [trial(0, r=4, batch_size=1)], numerics=numerics).bank.context(segments).tables
            )
            assert isinstance(tables, LaunchTables) == (numerics is Numerics.EXACT)


def test_a_reference_adapter_s_passes_have_the_numerics_of_the_trials(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_llama(tmp_path, num_layers=1)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layout, spec = AdapterLayout(decoder.linears), AdapterSpec(r=2, lora_alpha=2.0)
    config = adapter_config(spec, base_model="base", target_modules=["all-linear"])
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    weights = serialised_weights(layout, spec, torch.randn(2, layout.width))
    (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    with use_backend(Backend.TRITON):
        for numerics in Numerics:
            executor = executor_of(decoder, [trial(0, r=4, batch_size=1)], numerics=numerics)
            passes = executor._passes.of_adapter(ReferenceFiles(str(tmp_path), adapter_digest(tmp_path)))
            assert passes._bank.is_exact == (numerics is Numerics.EXACT)


def train(decoder: Decoder, specs: Sequence[TrialSpec], *, draw: random.Random, parks: bool, **sizes: Any) -> Any:
    """Return losses, evaluations and weights of trial 0; with ``parks`` it leaves and returns, and neighbours go."""
    executor = executor_of(decoder, specs, **sizes)
    for spec in specs:
        executor.load(spec)
    losses: list[float] = []
    for step in range(STEPS):
        losses += [done.loss for done in executor.step() if done.trial_id == 0]
        if step % 20 == 19:
            losses.append(executor.evaluate(executor.resident, rows=ROWS, row_ids=range(7))[0].loss)
        if parks and step % 7 == 6:
            by_id = {spec.trial_id: spec for spec in specs}
            gone = draw.choice([t for t in executor.resident if t != 0] or [0])
            states = {t: executor.unload(t) for t in {0, gone}}
            order = sorted(states, reverse=bool(draw.randrange(2)))
            for trial_id in order:
                executor.load(by_id[trial_id], states[trial_id])
    weights: Tensor = executor.weights(0)
    return losses, weights


WARM: set[tuple[object, ...]] = set()
"""What this process has compiled and loaded: a kernel is compiled once for all tests of a model."""


def compiled(decoder: Decoder, *, widest: Sequence[int] = (16, 64), dora: Sequence[int] = ()) -> Decoder:
    """Compile by all cores what packs launch: their widest rank chooses the kernels, and a trial alone has its own.

    Args:
        dora: The widest ranks of packs in which DoRA has dropout.
    """
    config = decoder.config
    wanted = [(r, 0.0, False) for r in widest] + [(r, 0.1, False) for r in widest] + [(r, 0.1, True) for r in dora]
    missing = [kind for kind in wanted if (config.family, config.hidden_size, *kind) not in WARM]
    WARM.update((config.family, config.hidden_size, *kind) for kind in missing)
    kinds = [AdapterSpec(r=r, lora_alpha=1.0, lora_dropout=drop, use_dora=use_dora) for r, drop, use_dora in missing]
    if not kinds:
        return decoder
    with KernelCompiler() as compiler:
        collect_launches(
            decoder,
            compiler=compiler,
            target_linears=decoder.linears,
            adapters=kinds,
            usual=25,
            # passes from the least budget to 32 trials in one: what is not compiled here is compiled one by one
            pass_tokens=(60, 200, 1000, 3000),
            numerics=Numerics.EXACT,
        )
        compiler.wait()
    return decoder


@pytest.mark.gpu
@pytest.mark.parametrize(
    # a body for each class of ranks makes a kernel, so those of 256 take half a minute: one model has them
    ("save", "widest", "dropout", "use_dora"),
    [
        (save_llama, 64, 0.0, False),
        (save_llama, 64, 0.1, False),
        (save_qwen2, 256, 0.1, False),
        (save_qwen2, 256, 0.0, True),
        (save_qwen2, 256, 0.1, True),
    ],
)
def test_a_packed_trial_is_the_trial_alone(
    tmp_path: Path, save: Any, widest: int, dropout: float, use_dora: bool
) -> None:
    save(tmp_path, num_layers=2)
    decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
    compiled(decoder, widest=(16, widest), dora=(16, widest) if use_dora and dropout else ())
    draw = random.Random(5)
    own = trial(0, r=16, batch_size=3, dropout=dropout, use_dora=use_dora)
    losses, weights = train(decoder, [own], draw=draw, parks=False)
    for count in (1, 3, 9, 31):
        others = [
            trial(
                1 + index,
                # each further width is half a minute of compiling
                r=widest if index == 0 else draw.choice([r for r in (8, 12, 16, 32, 64, 128, 256) if r <= widest]),
                batch_size=draw.randint(1, 6),
                # one DoRA is enough: its norms are taken again after each step
                dropout=0.0 if (with_dora := count == 3 and index == 1) else draw.choice([0.0, 0.0, 0.2]),
                use_dora=with_dora,
            )
            for index in range(count)
        ]
        specs = [*others[: count // 2], own, *others[count // 2 :]]
        # 32 trials in passes of two rows are a thousand passes and more
        budgets = [60, 200, 8192] if count < 31 else [600, 8192]
        sizes = {"token_budget": draw.choice(budgets), "graph_tokens": draw.choice([0, 8192])}
        found, packed = train(decoder, specs, draw=draw, parks=bool(count % 2), **sizes)
        assert found == losses, (count, sizes)
        assert torch.equal(packed, weights), (count, sizes)


@pytest.mark.gpu
def test_a_gpu_without_a_product_of_its_own_gives_the_same_bits_in_any_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that is no Hopper: Triton's product everywhere, and the terms behind it."""
    from cohort.kernels.packed_linear.hopper import launch

    monkeypatch.setattr(launch, "runs_hopper", lambda device: False)
    save_llama(tmp_path, num_layers=2, hidden_size=96)
    decoder = compiled(load_decoder(tmp_path, dtype="bfloat16", device="cuda"))
    own, draw = trial(0, r=16, batch_size=3), random.Random(3)
    others = [trial(1 + index, r=r, batch_size=2) for index, r in enumerate((8, 32, 64))]
    losses, weights = train(decoder, [own], draw=draw, parks=False)
    for sizes in ({"token_budget": 100}, {"graph_tokens": 8192}):
        found, packed = train(decoder, [*others, own], draw=draw, parks=True, **sizes)
        assert found == losses, sizes
        assert torch.equal(packed, weights), sizes


@pytest.mark.gpu
def test_recorded_passes_have_the_same_bits(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=2)
    decoder = compiled(load_decoder(tmp_path, dtype="bfloat16", device="cuda"), widest=[16])
    specs = [trial(index, r=16 - index, batch_size=2) for index in range(3)]
    draw = random.Random(1)
    eager = train(decoder, specs, draw=draw, parks=False)
    recorded = train(decoder, specs, draw=draw, parks=False, graph_tokens=8192)
    assert recorded[0] == eager[0]
    assert torch.equal(recorded[1], eager[1])


@pytest.mark.gpu
def test_a_trial_goes_on_elsewhere_with_the_same_bits(tmp_path: Path) -> None:
    """As after a kill: from a state on the host, in a model that is loaded again, beside others."""
    save_llama(tmp_path, num_layers=2)
    ranks = (8, 12, 16, 64)
    specs = [trial(index, r=r, batch_size=1 + index, dropout=0.1 * (index % 2)) for index, r in enumerate(ranks)]
    whole = executor_of(compiled(load_decoder(tmp_path, dtype="bfloat16", device="cuda")), specs)
    for spec in specs:
        whole.load(spec)
    losses = [{done.trial_id: done.loss for done in whole.step()} for _ in range(20)]
    first = executor_of(load_decoder(tmp_path, dtype="bfloat16", device="cuda"), specs[:3], graph_tokens=8192)
    for spec in specs[:3]:
        first.load(spec)
    found = [{done.trial_id: done.loss for done in first.step()} for _ in range(9)]
    states = {spec.trial_id: first.unload(spec.trial_id) for spec in specs[:3]}
    del first
    second = executor_of(load_decoder(tmp_path, dtype="bfloat16", device="cuda"), specs, token_budget=100)
    for spec in (specs[2], specs[0]):
        second.load(spec, states[spec.trial_id])
    found += [{done.trial_id: done.loss for done in second.step()} for _ in range(11)]
    for trial_id in (0, 2):
        assert [step[trial_id] for step in found] == [step[trial_id] for step in losses]
        assert torch.equal(second.weights(trial_id), whole.weights(trial_id))


@pytest.mark.gpu
def test_every_variant_optimizer_and_objective_has_its_bits_in_a_pack(tmp_path: Path) -> None:
    save_qwen2(tmp_path)
    decoder = compiled(load_decoder(tmp_path, dtype="bfloat16", device="cuda"), widest=[16, 32], dora=[16, 32])

    def outcomes(specs: Sequence[TrialSpec], *, token_budget: int) -> dict[int, tuple[list[float], Tensor, float]]:
        executor = executor_of(decoder, specs, token_budget=token_budget, rows=COMPARED)
        for spec in specs:
            executor.load(spec)
        losses: dict[int, list[float]] = {spec.trial_id: [] for spec in specs}
        for _ in range(6):
            for done in executor.step():
                losses[done.trial_id].append(done.loss)
        found = {}
        for spec in specs:
            row_ids = range(len(COMPARED_VALIDATION) // spec.objective.group_size)
            loss = executor.evaluate([spec.trial_id], rows=COMPARED_VALIDATION, row_ids=row_ids)[spec.trial_id].loss
            found[spec.trial_id] = (losses[spec.trial_id], executor.weights(spec.trial_id), loss)
        return found

    # whole modules have no exact form, and tasks that name them are refused
    named = {name: spec for name, spec in zip(VARIANTS, OF_VARIANTS, strict=True) if spec.adapter.saved is None}
    packed = outcomes([SUBJECTS[1], *named.values()], token_budget=60)
    others = []
    for name, spec in {"plain": SUBJECTS[1], **named}.items():
        expected, found = outcomes([spec], token_budget=10_000)[spec.trial_id], packed[spec.trial_id]
        if found[0] != expected[0] or found[2] != expected[2] or not torch.equal(found[1], expected[1]):
            others.append((name, spec.optim, type(spec.objective).__name__, found[0], expected[0]))
    assert others == []
