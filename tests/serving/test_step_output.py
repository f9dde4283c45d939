"""Outputs of a pass use OpenAI's terms, and are read by processes that have no torch."""

from __future__ import annotations

import subprocess
import sys

from cohort.serving.step_output import FinishReason


def test_the_first_reasons_are_openais_words() -> None:
    assert [reason.value for reason in FinishReason][:2] == ["stop", "length"]


def test_it_is_read_without_torch() -> None:
    code = "import sys, cohort.serving.step_output; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
