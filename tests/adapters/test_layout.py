"""A rank row holds one row of A and one row of B^T of every linear, in the order of the linears."""

from __future__ import annotations

from cohort.adapters.layout import AdapterLayout


def test_columns_follow_each_other_without_gaps() -> None:
    layout = AdapterLayout({"q": (4, 6), "v": (4, 2)})
    assert [(own.a, own.b) for own in layout.columns.values()] == [
        (slice(0, 4), slice(4, 10)),
        (slice(10, 14), slice(14, 16)),
    ]
    assert layout.width == 16
    assert AdapterLayout({}).width == 0
