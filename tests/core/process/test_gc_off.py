"""When Python's garbage collector is off, and what it never looks at again."""

from __future__ import annotations

import gc
import sys

import pytest

from cohort.core.process.gc_off import collections_off, imports_uncollected


def test_collections_are_off_inside_alone() -> None:
    with collections_off():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_those_who_turned_them_off_keep_them_off() -> None:
    gc.disable()
    try:
        with collections_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_first_import_makes_is_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "a_module_of_before", sys)
    with imports_uncollected("a_module_of_before"):
        assert not gc.isenabled()
    assert calls == [], "the process may hold other things by now"
    with imports_uncollected("a_module_that_is_new"):
        assert not gc.isenabled()
    assert len(calls) == 1
    assert gc.isenabled()
