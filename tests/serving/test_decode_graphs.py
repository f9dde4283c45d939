"""What a graph records, launched one by one: the same tokens as passes without it, while sequences come and go."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters import bank as bank_module
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.segments import SegmentTable
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters
from cohort.models.weights import load_decoder
from cohort.serving.decode_graphs import DecodeGraphs, keys_of_graph
from cohort.serving.engine import ServingEngine
from cohort.serving.pass_computer import PassComputer
from cohort.serving.scheduler import SchedulerSettings
from cohort.serving.sequence import SequenceRequest
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.serving.served import RANKS, Served, serve
from tests.serving.test_engine import FixedAdapters


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A layer of experts, and adapters of three ranks on them and on attention."""
    folder = save_checkpoint(
        tmp_path_factory.mktemp("mixture"),
        "Qwen3Moe",
        max_position_embeddings=96,
        num_hidden_layers=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    decoder = load_decoder(folder)
    layout = adapter_layout(decoder.config, [*decoder.linears, *expert_parameters(decoder.config)])
    bank = AdapterBank(layout, num_slots=4, num_rank_rows=64)
    generator = torch.Generator().manual_seed(3)
    for r in RANKS:
        weights_rD = torch.randn(r, layout.width, generator=generator) / 4
        bank.insert(AdapterSpec(r=r, lora_alpha=2.0 * r), AdapterState(weights=weights_rD))
    return Served(decoder, bank, folder, [])


def second_tokens(served: Served, *, with_graphs: bool, passes: int = 1) -> list[dict[int, int | None]]:
    """The tokens of the first passes that only decode, which are those that graphs run."""
    engine = ServingEngine(served.decoder, adapters=FixedAdapters(served), num_blocks=30)
    computer = engine._computer
    assert isinstance(computer, PassComputer)
    graphs = DecodeGraphs(served.decoder, computer._cache, max_model_len=32, records=torch.cuda.is_available())
    for index, adapter in enumerate((None, 2, 0, 2)):
        prompt = [12 + (7 * index + place) % 50 for place in range(3 + 6 * index)]
        engine.submit(SequenceRequest(prompt_tokens=prompt, max_new_tokens=3, adapter=adapter))
    engine.step()
    if not with_graphs:
        return [{output.number: output.token for output in engine.step()} for _ in range(passes)]
    computer.graphs = graphs
    with use_backend(Backend.TRITON):
        found = [{output.number: output.token for output in engine.step()} for _ in range(passes)]
    assert graphs.num_replays == passes
    return found


def test_the_passes_of_graphs_give_the_same_tokens(llama: Served) -> None:
    found = second_tokens(llama, with_graphs=True)
    assert found == second_tokens(llama, with_graphs=False)
    assert len(set(found[0].values())) > 1


def test_rows_that_share_their_adapters_factors_give_the_same_tokens(
    llama: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a bank has such tables for longer streams than these
    monkeypatch.setattr(bank_module, "MOST_ROWS", 0)
    with use_backend(Backend.TRITON):
        table = SegmentTable.from_samples([1], slots=[0], num_slots=4, num_rows=16, multiplies_slots=True)
        assert isinstance(llama.bank.context(table).tables, LaunchTables)
    assert second_tokens(llama, with_graphs=True, passes=2) == second_tokens(llama, with_graphs=False, passes=2)


@pytest.mark.parametrize("most_rows", [0, 256])
def test_adapters_on_experts_give_the_same_tokens(
    mixture: Served, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tables of slots, and by tables that have the slot of each row."""
    monkeypatch.setattr(bank_module, "MOST_ROWS", most_rows)
    found = second_tokens(mixture, with_graphs=True, passes=2)
    assert found == second_tokens(mixture, with_graphs=False, passes=2)
    assert len(set(found[0].values())) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("count", [5, 300])
def test_recorded_graphs_equal_passes_launched_one_by_one(llama: Served, count: int) -> None:
    decoder = load_decoder(llama.model, dtype="float32", device="cuda")
    bank = AdapterBank(llama.bank.layout, num_slots=4, num_rank_rows=64, device="cuda", trains=False)
    for slot in llama.bank.occupied:
        bank.insert(llama.bank.spec(slot), AdapterState(weights=llama.bank.read(slot).weights))
    on_gpu = Served(decoder, bank, llama.model, llama.adapters)

    def answers(*, records: bool) -> tuple[dict[int, list[int]], int]:
        engine = ServingEngine(
            decoder,
            adapters=FixedAdapters(on_gpu),
            num_blocks=12 * count,
            settings=SchedulerSettings(max_num_seqs=512),
            records_graphs=records,
        )
        for index in range(count):
            adapter, place = (None, 2, 0, 1, 2)[index % 5], index % 7
            prompt = [12 + (7 * index + step) % 50 for step in range(3 + 5 * place)]
            engine.submit(SequenceRequest(prompt_tokens=prompt, max_new_tokens=10 + place, adapter=adapter))
        found: dict[int, list[int]] = {}
        while engine.has_work:
            for output in engine.step():
                if output.token is not None:
                    found.setdefault(output.number, []).append(output.token)
        return found, 0 if engine.graphs is None else engine.graphs.num_replays

    with_graphs, replays = answers(records=True)
    assert replays >= 10
    launched = answers(records=False)[0]
    # of hundreds of answers rounding may turn one, as products of other heights add up in another order
    assert sum(with_graphs[number] != launched[number] for number in launched) <= count // 100


@pytest.mark.parametrize(("longest", "keys"), [(1, 1024), (1024, 1024), (1025, 4096), (5000, 16384), (20000, 32768)])
def test_graphs_have_room_for_the_longest_sequence_and_little_more(longest: int, keys: int) -> None:
    assert keys_of_graph(longest, most=32768) == keys
    assert keys_of_graph(20, most=32) == 32
