"""What passes took of a device's memory, as it is compared and recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.core.memory_records import GradientCheckpointing, PassKind, PassPeak, PassSize

SIZE = PassSize(num_rows=64, num_trained=32, rank_entries=512, head_bytes=4096, num_sequences=4, sum_squares=1024)


@pytest.mark.parametrize(("forward", "backward", "most"), [(10, 30, 30), (30, 10, 30), (7, 0, 7), (0, 0, 0)])
def test_a_pass_took_what_its_larger_half_took(forward: int, backward: int, most: int) -> None:
    peak = PassPeak(kind=PassKind.TRAIN, size=SIZE, forward_bytes=forward, backward_bytes=backward)
    assert peak.num_bytes == most


def test_sizes_of_other_regimes_and_recomputed_ones_are_other_keys() -> None:
    others = {SIZE, replace(SIZE, regime="augmented"), replace(SIZE, recomputed=True), replace(SIZE)}
    assert len(others) == 3


def test_words_of_the_record_and_of_the_task_file_are_read_back() -> None:
    # both are written to run.db and to task files as text
    assert [PassKind(str(kind)) for kind in PassKind] == [PassKind.TRAIN, PassKind.EVALUATE]
    assert GradientCheckpointing("auto") is GradientCheckpointing.AUTO
    assert f"{PassKind.TRAIN} pass" == "training pass"
    with pytest.raises(ValueError, match="sometimes"):
        GradientCheckpointing("sometimes")
