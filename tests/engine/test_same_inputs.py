"""What a resume refuses and what it only tells."""

from __future__ import annotations

from typing import cast

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.machine import cpu_name
from cohort.engine.preparation import Preparation, prepare
from cohort.engine.run_store_records import JsonValue
from cohort.engine.same_inputs import identity_facts, require_same_inputs, surroundings_warning
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def preparation(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    return prepare(tiny_task(write_inputs(tmp_path_factory.mktemp("same"))), clock=SystemClock())


def recorded(preparation: Preparation, **changed: JsonValue) -> dict[str, JsonValue]:
    return {**preparation.facts, **identity_facts(preparation), **changed}


def test_the_same_machine_is_not_worth_a_word(preparation: Preparation) -> None:
    require_same_inputs(recorded(preparation), preparation)
    assert surroundings_warning(recorded(preparation), preparation.facts) is None
    assert preparation.facts["device"] == f"cpu ({cpu_name()})"


def test_other_versions_are_told(preparation: Preparation) -> None:
    now = cast("dict[str, JsonValue]", preparation.facts["versions"])
    facts = recorded(preparation, versions={**now, "torch": "2.0.1", "triton": "9.9", "numpy": "1.0"})
    require_same_inputs(facts, preparation)
    warning = surroundings_warning(facts, preparation.facts)
    assert warning is not None
    assert f"torch {now['torch']} (was 2.0.1), triton {now.get('triton', 'nothing')} (was 9.9): the bits" in warning
    assert "numpy" not in warning


def test_another_processor_is_told_and_another_kind_of_device_refused(preparation: Preparation) -> None:
    facts = recorded(preparation, device="cpu (Elder One)")
    require_same_inputs(facts, preparation)
    assert f"device cpu ({cpu_name()}) (was cpu (Elder One))" in str(surroundings_warning(facts, preparation.facts))
    with pytest.raises(InputError, match="the device changed"):
        require_same_inputs(recorded(preparation, device="cuda (Elder One)"), preparation)
