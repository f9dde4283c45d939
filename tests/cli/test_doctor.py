"""``cohort doctor``: this machine, and the kernels of a GPU that is not here."""

from __future__ import annotations

import json

import pytest

from cohort.cli.main import main
from cohort.engine import warm_caches
from cohort.engine.warm_caches import WarmReport
from cohort.models.weight_formats import WEIGHT_FORMATS


def run(*arguments: str) -> int:
    """Return the exit code of ``cohort`` with these words."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_doctor_says_what_will_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    for words in ("will use", "kernels", "versions", "torch", "disk for runs"):
        assert words in shown
    assert run("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_cpus"] >= 1
    assert report["used_dtype"] in ("float32", "bfloat16")
    if not report["gpus"]:
        # the words of the documentation's table, by the same property
        for name, kept in WEIGHT_FORMATS.items():
            assert report["formats"][name] == f"{kept.summary}; runs on {kept.runs_on}"


def test_doctor_tells_of_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--gpu", "NVIDIA H200") == 0
    shown = capsys.readouterr().out
    assert "measured on NVIDIA H200" in shown
    narrow = "exact for layers of widths 2,048 and 8,192: a step takes up to 4 % longer"
    assert f"numerics: auto is {narrow}, measured at 1,020 to 8,192 tokens, but fast with DoRA: " in shown
    assert "exact for layers of widths 4,096 and 14,336" in shown
    assert run("doctor", "--gpu", "NVIDIA H100 80GB HBM3") == 0
    shown = capsys.readouterr().out
    assert "exact for layers of widths 2,048 and 8,192: a step takes up to 3 % longer, measured at 1,020" in shown
    assert run("doctor", "--gpu", "NVIDIA A10") == 0
    assert "Nothing was measured on 'NVIDIA A10' (measured: NVIDIA H100 80GB HBM3, " in capsys.readouterr().out
    assert run("doctor", "--gpu", "NVIDIA H200", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["2048", "8192", "numerics: auto"]
    assert run("doctor", "--gpu", "NVIDIA L4") == 0
    assert "numerics: auto is fast: what exact costs was not measured on " in capsys.readouterr().out


def test_doctor_makes_up_nothing_about_a_gpu_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--gpu", "banana") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "found    'banana', which is not a GPU that is known" in printed.err
    assert "NVIDIA H100 80GB HBM3 | NVIDIA H200 | " in printed.err
    assert run("doctor", "--gpu", "h200", "--json") == 2
    assert "Did you mean 'NVIDIA H200'?" in capsys.readouterr().out


def test_doctor_warms_for_this_machine_and_for_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("doctor", "--warm", "no/such/model") == 2
    assert "no/such/model" in capsys.readouterr().err
    assert run("doctor", "--warm", "no/such/model", "--gpu", "NVIDIA H200") == 2
    assert "no/such/model" in capsys.readouterr().err
    assert run("doctor", "--warm", "no/such/model", "--gpu", "h200") == 2
    assert "Did you mean 'NVIDIA H200'?" in capsys.readouterr().err

    def warm(model: str, *, watcher: object, gpu: str) -> WarmReport:
        del watcher
        return WarmReport(
            model=model, device=gpu, phases=(("compiling", 61.0),), caches=("/c", "/t"), is_task=False, num_kernels=7
        )

    monkeypatch.setattr(warm_caches, "warm_caches", warm)
    assert run("doctor", "--warm", "model", "--gpu", "NVIDIA H200") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ready on NVIDIA H200: model",
        "  compiling: 1m 01s",
        "compiled 7 kernels",
        "Keep the second directory at its path: Triton finds kernels where they were compiled. "
        "Runs measure what passes take.",
        "kept in /c, /t",
    ]


def test_doctor_measures_for_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--measure", "no/such/model", "--gpu", "NVIDIA H200") == 2
    assert "Leave --gpu out" in capsys.readouterr().err
    assert run("doctor", "--measure", "no/such/model", "--warm", "no/such/model") == 2
    assert "Run --measure first, then --warm" in capsys.readouterr().err
    assert run("doctor", "--measure", "no/such/model") == 2
    assert "no/such/model" in capsys.readouterr().err
