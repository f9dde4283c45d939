"""What recordings take of a GPU whose memory was reserved for the largest of them, and the bits they compute there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.llama_shapes import decoder_config, random_decoder
from cohort.core.numerics import Numerics
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.captured_pass import CapturedPass, RecordingMemory
from cohort.training.cuda_graphs.pass_recorder import PassRecorder
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind, rounded_up
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from tests.training.cuda_graphs.test_recorded_training import ROWS, spec_of
from tests.training.small_models import save_llama

pytestmark = pytest.mark.gpu

MOST_ROWS = 4096
ASCENDING = (1280, 1536, 2048, 2560, 3072, 3392)
# tensors of up to 1 MiB lie in segments of their own, whatever was reserved
SMALL_BYTES = 96 << 20


def pool_of(recorder: PassRecorder) -> Any:
    """Return the name of the memory that recordings share, as the allocator knows it."""
    assert recorder._memory is not None
    return recorder._memory._pool


def pool_bytes(pool: Any) -> int:
    """Return what the allocator has taken of the device for recordings alone."""
    return sum(
        part["total_size"] for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) == tuple(pool)
    )


def empty_caches() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def shape_of(num_rows: int) -> PassShape:
    need = PassShape(num_rows=num_rows, num_sequences=num_rows // 64, length=64, num_trained=num_rows // 2)
    shape = rounded_up(need, padded=False)
    assert shape.num_rows == num_rows
    return shape


class Recorded:
    """A model of 16 layers whose first training pass has been launched, and passes that are recorded one by one."""

    def __init__(self, *, objective: str = "sft") -> None:
        decoder = random_decoder(decoder_config("44m", num_layers=16), device="cuda", dtype=torch.bfloat16)
        self.executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=ExecutorSettings(
                num_slots=2,
                num_rank_rows=64,
                token_budget=MOST_ROWS,
                evaluation_token_budget=MOST_ROWS,
                graph_tokens=MOST_ROWS,
            ),
            device="cuda",
            compute_dtype=torch.bfloat16,
        )
        for trial_id in range(2):
            own = OBJECTIVES[objective]
            self.executor.load(spec_of(trial_id, r=16, batch_size=4, objective=own))
        self.executor.step()
        self.kind = GraphKind.of_training(from_terms=objective != "sft", drops=False)
        self.recorder = self.new_recorder()

    def new_recorder(self) -> PassRecorder:
        return PassRecorder(self.executor.decoder, self.executor.bank)

    def reserve(self, num_rows: int = MOST_ROWS) -> bool:
        return self.recorder.reserve(shape_of(num_rows), kind=self.kind, slots=self.executor.bank.slot_table())

    def record(self, num_rows: int, *, recorder: PassRecorder | None = None) -> CapturedPass:
        recorder, shape = recorder or self.recorder, shape_of(num_rows)
        graph = recorder.record(
            shape, kind=self.kind, slots=self.executor.bank.slot_table(), is_short=recorder.is_short(shape)
        )
        assert graph is not None
        return graph

    def bytes_of_one(self, num_rows: int) -> int:
        """Return what a recording takes alone."""
        recorder = self.new_recorder()
        graph = self.record(num_rows, recorder=recorder)
        found = pool_bytes(pool_of(recorder))
        graph.free()
        del graph, recorder
        empty_caches()
        return found


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    yield Recorded()
    empty_caches()


def test_few_layers_tell_what_a_recording_takes(recorded: Recorded) -> None:
    assert recorded.recorder.can_reserve
    alone = recorded.bytes_of_one(MOST_ROWS)
    assert recorded.reserve()
    reserved = pool_bytes(pool_of(recorded.recorder))
    print(f"\nreserved {reserved / 2**20:.0f} MiB, a recording takes {alone / 2**20:.0f}")
    assert reserved > 3 * SMALL_BYTES
    # its small tensors come on top of what is cut out of the large block
    assert 0.75 * alone <= reserved <= 1.03 * alone


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_ascending_sizes_take_nothing_more_of_the_device(objective: str) -> None:
    recorded = Recorded(objective=objective)
    assert recorded.reserve()
    pool = pool_of(recorded.recorder)
    empty_caches()
    reserved, held, (free, _) = pool_bytes(pool), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    graphs = []
    for num_rows in ASCENDING:
        assert not recorded.recorder.is_short(shape_of(num_rows))
        graphs.append(recorded.record(num_rows))
    empty_caches()
    more, taken = torch.cuda.memory_reserved() - held, free - torch.cuda.mem_get_info()[0]
    print(f"\nreserved {reserved / 2**20:.0f} MiB; {len(graphs)} recordings: {more / 2**20:.0f} more by the allocator,")
    print(f"{taken / 2**20:.0f} by the driver, to which graphs themselves count")
    assert pool_bytes(pool) - reserved <= SMALL_BYTES
    assert more <= SMALL_BYTES
    # the largest itself finds most of its room
    graphs.append(recorded.record(MOST_ROWS))
    print(f"with the largest {(pool_bytes(pool) - reserved) / 2**20:.0f} MiB more")
    assert pool_bytes(pool) <= 1.2 * reserved + SMALL_BYTES
    for graph in (*graphs, *reversed(graphs)):
        assert torch.count_nonzero(graph.replay()) == 0, "filler trains nothing"
    for graph in graphs:
        graph.free()
    recorded.recorder.give_up_memory()
    empty_caches()
    assert pool_bytes(pool) == 0


def test_recordings_take_what_was_not_reserved(recorded: Recorded) -> None:
    recorded.recorder._most_bytes = 16 << 20
    assert recorded.reserve()
    pool = pool_of(recorded.recorder)
    assert pool_bytes(pool) == 16 << 20
    graphs = [recorded.record(num_rows) for num_rows in (*ASCENDING, MOST_ROWS)]
    assert pool_bytes(pool) > 3 * SMALL_BYTES
    for graph in graphs:
        assert torch.count_nonzero(graph.replay()) == 0
        graph.free()


def test_a_device_without_that_much_reserves_less_and_records_on(recorded: Recorded) -> None:
    needed, total = recorded.bytes_of_one(MOST_ROWS), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 0.8 * needed) / total)
    try:
        assert not recorded.reserve()
        assert recorded.recorder.is_short(shape_of(1024)), "nothing was taken"
        assert recorded.reserve(1024)
        assert not recorded.recorder.is_short(shape_of(1024))
        graph = recorded.record(1024)
        assert torch.count_nonzero(graph.replay()) == 0
        graph.free()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_is_given_up_is_free_again(recorded: Recorded) -> None:
    executor = recorded.executor
    assert executor.captured is not None
    for _ in range(4):
        executor.step()
    assert executor.captured.num_replays > 0
    assert MOST_ROWS not in executor.captured.sizes[recorded.kind], "the largest was not recorded"
    pool = pool_of(executor.captured.recorder)
    assert pool_bytes(pool) > 3 * SMALL_BYTES, "but its memory taken"
    assert executor.captured.give_up()
    empty_caches()
    assert pool_bytes(pool) == 0
    assert executor.step()


@pytest.mark.parametrize("graph_bytes", [None, 1 << 20])
def test_recordings_in_reserved_memory_have_the_bits_of_launched_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph_bytes: int | None
) -> None:
    asked: list[int] = []
    reserve = RecordingMemory.reserve

    def noted(memory: RecordingMemory, num_bytes: int, *, is_short: bool) -> None:
        asked.append(num_bytes)
        reserve(memory, num_bytes, is_short=is_short)

    monkeypatch.setattr(RecordingMemory, "reserve", noted)
    save_llama(tmp_path, num_layers=12)
    found: list[Any] = []
    for graph_tokens in (0, MOST_ROWS):
        decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda")
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=ExecutorSettings(
                num_slots=4,
                num_rank_rows=128,
                token_budget=10_000,
                evaluation_token_budget=10_000,
                graph_tokens=graph_tokens,
                graph_bytes=graph_bytes if graph_tokens else None,
                numerics=Numerics.EXACT,
            ),
            device="cuda",
            compute_dtype=torch.bfloat16,
        )
        for trial_id, (r, batch_size) in enumerate([(16, 4), (8, 2), (33, 2)]):
            executor.load(spec_of(trial_id, r=r, batch_size=batch_size, objective=OBJECTIVES["sft"]))
        losses = [event.loss for _ in range(12) for event in executor.step()]
        found.append((losses, [executor.weights(trial_id) for trial_id in range(3)]))
        if graph_tokens:
            assert executor.captured is not None
            assert executor.captured.num_replays >= 6
            assert all(max(sizes) < MOST_ROWS for sizes in executor.captured.sizes.values())
    assert len(asked) == 1
    assert 0 < asked[0] <= (graph_bytes or 1 << 40)
    one_by_one, in_reserved = found
    assert in_reserved[0] == one_by_one[0]
    assert all(torch.equal(*pair) for pair in zip(in_reserved[1], one_by_one[1], strict=True))
