"""MKL adds up in its strict order where its ordinary one depends on a row's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.process.blas_sums import keep_order_of_sums, mkl_takes_avx512


@pytest.mark.parametrize(
    ("vendor", "flags", "before", "after"),
    [
        ("GenuineIntel", "fma avx2", {}, "AVX2,STRICT"),
        ("GenuineIntel", "fma avx2 avx512f", {}, None),
        ("GenuineIntel", "fma avx2 avx512f", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "AVX2,STRICT"),
        ("GenuineIntel", "fma avx2", {"MKL_CBWR": "COMPATIBLE"}, "COMPATIBLE"),
        ("AuthenticAMD", "fma avx2", {}, None),
    ],
)
def test_it_is_set_where_it_is_needed(
    tmp_path: Path, vendor: str, flags: str, before: dict[str, str], after: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    environment = dict(before)
    keep_order_of_sums(environment, cpu_info=tmp_path / "cpuinfo")
    assert environment.get("MKL_CBWR") == after


def test_a_system_that_says_nothing_is_left_as_it_is(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    keep_order_of_sums(environment, cpu_info=tmp_path / "none")
    assert environment == {}


@pytest.mark.parametrize(
    ("vendor", "flags", "environment", "expected"),
    [
        ("GenuineIntel", "fma avx2 avx512f", {}, True),
        ("GenuineIntel", "fma avx2 avx512f", {"MKL_ENABLE_INSTRUCTIONS": "avx512_e1"}, True),
        ("GenuineIntel", "fma avx2 avx512f", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, False),
        ("GenuineIntel", "fma avx2 avx512f", {"MKL_CBWR": "COMPATIBLE"}, False),
        ("GenuineIntel", "fma avx2", {}, False),
        ("AuthenticAMD", "fma avx2 avx512f", {}, False),
    ],
)
def test_mkl_takes_the_widest_vectors_on_intel_processors_alone(
    tmp_path: Path, vendor: str, flags: str, environment: dict[str, str], *, expected: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert mkl_takes_avx512(environment, cpu_info=tmp_path / "cpuinfo") is expected


def test_of_a_system_that_says_nothing_it_is_not_supposed(tmp_path: Path) -> None:
    assert not mkl_takes_avx512({}, cpu_info=tmp_path / "none")
