"""What a graph records, launched one by one: the same tokens as passes without it, while sequences come and go."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.bank import AdapterBank, AdapterState
from cohort.kernels.backend import Backend, use_backend
from cohort.models.weights import load_decoder
from cohort.serving.decode_graphs import DecodeGraphs, keys_of_graph, rows_of_graph
from cohort.serving.engine import ServingEngine
from cohort.serving.pass_computer import PassComputer
from cohort.serving.sequence import SequenceRequest
from tests.serving.served import Served, serve
from tests.serving.test_engine import FixedAdapters


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("llama"), "Llama", num_hidden_layers=1)


def second_tokens(served: Served, *, with_graphs: bool) -> dict[int, int | None]:
    """The tokens of the first pass that only decodes, which is the one that a graph runs."""
    engine = ServingEngine(served.decoder, adapters=FixedAdapters(served), num_blocks=30)
    computer = engine._computer
    assert isinstance(computer, PassComputer)
    graphs = DecodeGraphs(served.decoder, computer._cache, max_model_len=32, records=torch.cuda.is_available())
    for index, adapter in enumerate((None, 2, 0, 2)):
        prompt = [12 + (7 * index + place) % 50 for place in range(3 + 6 * index)]
        engine.submit(SequenceRequest(prompt_tokens=prompt, max_new_tokens=3, adapter=adapter))
    engine.step()
    if not with_graphs:
        return {output.number: output.token for output in engine.step()}
    computer.graphs = graphs
    with use_backend(Backend.TRITON):
        found = {output.number: output.token for output in engine.step()}
    assert graphs.num_replays == 1
    return found


def test_the_passes_of_graphs_give_the_same_tokens(llama: Served) -> None:
    found = second_tokens(llama, with_graphs=True)
    assert found == second_tokens(llama, with_graphs=False)
    assert len(set(found.values())) > 1


@pytest.mark.gpu
def test_recorded_graphs_equal_passes_launched_one_by_one(llama: Served) -> None:
    decoder = load_decoder(llama.model, dtype="float32", device="cuda")
    bank = AdapterBank(llama.bank.layout, num_slots=4, num_rank_rows=64, device="cuda", trains=False)
    for slot in llama.bank.occupied:
        bank.insert(llama.bank.spec(slot), AdapterState(weights=llama.bank.read(slot).weights))
    on_gpu = Served(decoder, bank, llama.model, llama.adapters)

    def answers(*, records: bool) -> tuple[dict[int, list[int]], int]:
        engine = ServingEngine(decoder, adapters=FixedAdapters(on_gpu), num_blocks=60, records_graphs=records)
        for index, adapter in enumerate((None, 2, 0, 1, 2)):
            prompt = [12 + (7 * index + place) % 50 for place in range(3 + 5 * index)]
            engine.submit(SequenceRequest(prompt_tokens=prompt, max_new_tokens=10 + index, adapter=adapter))
        found: dict[int, list[int]] = {}
        while engine.has_work:
            for output in engine.step():
                if output.token is not None:
                    found.setdefault(output.number, []).append(output.token)
        return found, 0 if engine.graphs is None else engine.graphs.num_replays

    with_graphs, replays = answers(records=True)
    assert replays >= 10
    assert with_graphs == answers(records=False)[0]


@pytest.mark.parametrize(("count", "rows"), [(1, 16), (16, 16), (17, 32), (256, 256), (257, None)])
def test_few_sizes_serve_all_batches(count: int, rows: int | None) -> None:
    assert rows_of_graph(count) == rows


@pytest.mark.parametrize(("longest", "keys"), [(1, 1024), (1024, 1024), (1025, 4096), (5000, 16384), (20000, 32768)])
def test_graphs_have_room_for_the_longest_sequence_and_little_more(longest: int, keys: int) -> None:
    assert keys_of_graph(longest, most=32768) == keys
    assert keys_of_graph(20, most=32) == 32
