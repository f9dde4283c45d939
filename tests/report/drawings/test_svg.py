"""Axes place values, and lines leave gaps."""

from __future__ import annotations

import math

import pytest

from cohort.report.drawings.svg import band_axis, linear_axis, log_axis, polyline
from cohort.report.labels import number_label


def test_axes_place_values_and_clip() -> None:
    axis = linear_axis(0.0, 10.0)
    assert [label for _, label in axis.ticks] == ["0", "2", "4", "6", "8", "10"]
    assert (axis.place(5.0), axis.place(99.0), axis.place(-math.inf)) == (0.5, 1.0, 0.0)
    assert math.isnan(axis.place(math.nan))
    assert 0 < linear_axis(3.0, 3.0).place(3.0) < 1
    log = log_axis(1e-5, 1e-3)
    assert log.place(1e-4) == pytest.approx(0.5)
    assert [label for _, label in log.ticks] == ["1e-5", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "0.001"]
    assert band_axis(["a", "b"]).place(1.0) == pytest.approx(0.75)
    assert [number_label(value) for value in (1e-5, 2e-4, 0.25, 1536.0, 0.0)] == ["1e-5", "2e-4", "0.25", "1.54e3", "0"]
    assert polyline([(0, 0), (1, math.nan), (2, 2), (3, 3)], classes="c").count("M") == 2
