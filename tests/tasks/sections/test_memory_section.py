"""The section about memory: a limit with its unit, and what is no limit."""

from __future__ import annotations

import pytest

from cohort.tasks.sections.memory_section import MemorySection
from tests.tasks.sections.refused_values import refused


def test_a_memory_limit_is_read_with_its_unit() -> None:
    for written, num_bytes in (("24GB", 24 * 10**9), ("1.5 GiB", 3 << 29), (1 << 30, 1 << 30), (None, None)):
        assert MemorySection.model_validate({"limit": written}).limit == num_bytes
    assert MemorySection.model_validate({"limit": "none"}).limit is None


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (24, "24 | Write a unit, such as 24GiB."),
        ("10KB", "'10KB' | Write for example limit: 24GiB."),
        ("lots", "'lots' | Write for example limit: 24GiB, or remove the key."),
        (True, "True | Write for example limit: 24GiB, or remove the key."),
    ],
)
def test_a_memory_limit_that_is_refused(limit: object, words: str) -> None:
    assert refused(MemorySection, limit=limit) == words
