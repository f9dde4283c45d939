"""What extends Cohort is one file of a package: a task file names it, a sweep runs with it, messages list it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cohort.core.errors import InputError, UnsupportedModelError
from cohort.engine.tune import resume, tune
from cohort.models.config_file import read_config
from cohort.tasks.loading import load_task
from tests.core.plugin_packages import install
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

Add = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Return what installs a package of one file, with its entry point."""

    def _add(group: str, name: str, text: str) -> None:
        module = f"own_{name}"
        (kind,) = re.findall(r"^(OPTIMIZER|OBJECTIVE|METRIC|FORMAT|FAMILY) = ", text, flags=re.MULTILINE)
        site = tmp_path / module
        install(monkeypatch, site, package=module, group=group, points={name: f"{module}:{kind}"})
        (site / f"{module}.py").write_text(text)
        # another test's file may have the same name
        monkeypatch.delitem(sys.modules, module, raising=False)

    return _add


def results(run: Path) -> list[dict[str, str]]:
    with (run / "results.csv").open() as file:
        return list(csv.DictReader(file))


SIGN_SGD = """
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.optimizers.slot_step import step_slots
from cohort.adapters.adapter_state import Moment

DECLARATION = OptimizerDeclaration(
    name="sign_momentum",
    summary="steps by the sign of a momentum",
    reads=("adam_beta1",),
    has_own_states=True,
    not_with={"use_dora": "which knows no magnitudes"},
)


class SignMomentum(Optimizer):
    moments = (Moment("momentum"),)

    def update(self, bank, residents):
        return step_slots(bank, residents, _step)


def _step(own):
    momentum = own.moments["momentum"].mul_(own.spec.beta1).add_(own.grads_RD)
    own.params_RD.sub_(own.rate * momentum.sign())


OPTIMIZER = SignMomentum()
"""


def test_an_optimizer(add: Add, inputs: Path, tmp_path: Path) -> None:
    add("cohort.optimizers", "sign_momentum", SIGN_SGD)
    assert "own_sign_momentum" not in sys.modules
    space = {"optim": ["adamw", "sign_momentum"], "adam_beta1": [0.5]}
    task = tiny_task(inputs, search={"sampler": "grid", "space": space}, training={"max_steps": 3})
    assert "own_sign_momentum" not in sys.modules, "a task is checked without the optimizer's torch"
    run = tmp_path / "run"
    tune(task, run)
    assert {row["optim"] for row in results(run)} == {"adamw", "sign_momentum"}
    assert len({row["last_loss"] for row in results(run)}) == 2
    resume(run)
    with pytest.raises(InputError, match=r"sign_momentam'; allowed: .*sgd.*sign_momentum.*mean optim: sign_momentum"):
        tiny_task(inputs, training={"optim": "sign_momentam"})
    with pytest.raises(InputError, match=r"sign_momentum, which knows no magnitudes, with use_dora"):
        tune(tiny_task(inputs, lora={"use_dora": True}, training={"optim": "sign_momentum"}), tmp_path / "other")


MARGIN = """
from dataclasses import dataclass
from typing import ClassVar

from cohort.core.setting_fields import number
from cohort.data.settings import RowReading
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Objective

DECLARATION = ObjectiveDeclaration(
    name="likelihood_margin",
    summary="the better answer is likelier by a margin",
    reads=RowReading.PAIRS,
    values={"gap": Searched(made=number(2.0, "by how many nats", minimum=None), example="[1.0, 2.0]")},
    measures=("reward_accuracy",),
)


@dataclass(frozen=True, kw_only=True)
class LikelihoodMargin(Objective):
    group_size: ClassVar[int] = DECLARATION.group_size
    gap: float = DECLARATION.default("gap")

    def terms(self, groups):
        chosen, rejected = groups.answer_losses_GS.unbind(1)
        return (groups.numbers["gap"] + chosen - rejected).relu()

    def metrics(self, groups):
        chosen, rejected = groups.answer_losses_GS.unbind(1)
        return {"reward_accuracy": (chosen < rejected).to(chosen.dtype)}


OBJECTIVE = LikelihoodMargin()
"""


def test_an_objective(add: Add, inputs: Path, tmp_path: Path) -> None:
    add("cohort.objectives", "likelihood_margin", MARGIN)
    pairs = tmp_path / "pairs.jsonl"
    made = [{"prompt": f"{n} + 1 = ", "chosen": str(n + 1), "rejected": str(n)} for n in range(24)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in made))
    dataset = {"train": str(pairs), "validation": str(pairs)}
    space = {"gap": [0.5, 3.0], "r": [2]}
    task = tiny_task(
        inputs,
        dataset=dataset,
        objective={"type": "likelihood_margin"},
        search={"sampler": "grid", "space": space},
        training={"max_steps": 3},
        evaluation={"metric": "reward_accuracy"},
    )
    assert "own_likelihood_margin" not in sys.modules, "a task is checked without the objective's torch"
    run = tmp_path / "run"
    tune(task, run)
    assert {row["gap"] for row in results(run)} == {"0.5", "3.0"}
    assert len({row["last_loss"] for row in results(run)}) == 2
    resume(run)
    assert "gap: 2.0" in tiny_task(inputs, dataset=dataset, objective="likelihood_margin").resolved_yaml()

    (tmp_path / "task.yaml").write_text(
        f"base_model: {inputs}/model\ndataset: {{train: {pairs}}}\nobjective: likelihood_margin\n"
    )
    assert load_task(tmp_path / "task.yaml", ["--objective.gap", "4"]).objective.values == {"gap": 4.0}

    def refused(words: str, **sections: Any) -> None:
        with pytest.raises(InputError, match=words):
            tiny_task(inputs, **{"dataset": dataset, **sections})

    refused(
        r"likelihood_margn'; allowed: sft .*likelihood_margin.*objective: likelihood_margin",
        objective="likelihood_margn",
    )
    refused(
        r"gap with dpo, which does not read it; allowed: gap with likelihood_margin",
        search={"space": {"gap": [1]}},
        objective="dpo",
    )
    refused(r"objective.gap.*a number above 0", objective={"type": "likelihood_margin", "gap": -1})
    refused(r"beta with likelihood_margin, which", objective={"type": "likelihood_margin", "beta": 1.0})
    refused(r"gapp.*objective.gap", objective={"type": "likelihood_margin", "gapp": 1.0})


SHORTEST = """
from cohort.metrics.metric import MetricKind


def as_short(answer, expected):
    return 1 / (1 + abs(len(answer) - len(expected)))


METRIC = MetricKind(name="as_short", summary="how near the answer's length is", score=as_short, counts_hits=False)
"""


def test_a_metric(add: Add, inputs: Path, tmp_path: Path) -> None:
    add("cohort.metrics", "as_short", SHORTEST)
    task = tiny_task(
        inputs,
        search={"sampler": "grid", "space": {"r": [2, 4]}},
        training={"max_steps": 2},
        evaluation={"metric": "as_short", "max_new_tokens": 3, "answer_pattern": "[a-z]+"},
    )
    run = tmp_path / "run"
    tune(task, run)
    assert all(0 < float(row["eval_as_short"]) <= 1 for row in results(run))
    resume(run)
    with pytest.raises(InputError, match=r"as_shrt'; allowed: loss .*exact_match.*as_short.* Did you mean as_short"):
        tiny_task(inputs, evaluation={"metric": "as_shrt"})


EIGHTHS = """
import torch

from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.models.weight_formats.weight_format import WeightFormat

DECLARATION = FormatDeclaration(name="eighths", summary="weights rounded to eighths")
FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=lambda weight, bias: FrozenLinear((weight * 8).round() / 8, bias),
    weight_bytes=lambda num_out, num_in, dtype: num_out * num_in * dtype.itemsize,
    compute_dtypes=(torch.float32,),
)
"""


def test_a_weight_format(add: Add, inputs: Path, tmp_path: Path) -> None:
    add("cohort.weight_formats", "eighths", EIGHTHS)
    sections = {"search": {"sampler": "grid", "space": {"r": [2, 4]}}, "training": {"max_steps": 2}}
    task = tiny_task(inputs, quantization="eighths", **sections)
    assert "own_eighths" not in sys.modules, "a task is checked without the format's torch"
    run = tmp_path / "run"
    tune(task, run)
    tune(tiny_task(inputs, **sections), tmp_path / "plain")
    assert all(
        ours["last_loss"] != theirs["last_loss"]
        for ours, theirs in zip(results(run), results(tmp_path / "plain"), strict=True)
    )
    resume(run)
    with pytest.raises(
        InputError, match=r"eigths'; allowed: none \| .*nf4 \| eighths.* Did you mean quantization: eighths"
    ):
        tiny_task(inputs, quantization="eigths")


SEED_OSS = """
from cohort.models.families.family import ModelFamily

FAMILY = ModelFamily(
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_out_bias),
    mlp_bias=lambda settings: bool(settings.mlp_bias),
)
"""


def test_a_model_family(add: Add, inputs: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SeedOssConfig(
        **sizes, num_key_value_heads=1, head_dim=8, vocab_size=512, attention_dropout=0.0
    )
    model = tmp_path / "model"
    transformers.SeedOssForCausalLM(config).save_pretrained(model)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(inputs / "model" / file, model / file)
    sections = {"search": {"sampler": "grid", "space": {"r": [2, 4]}}, "training": {"max_steps": 2}}
    bridged = tmp_path / "bridged"
    tune(tiny_task(inputs, model_name_or_path=str(model), **sections), bridged)
    add("cohort.model_families", "seed_oss", SEED_OSS)
    assert read_config(model).bridged is None
    run = tmp_path / "run"
    tune(tiny_task(inputs, model_name_or_path=str(model), **sections), run)
    for ours, theirs in zip(results(run), results(bridged), strict=True):
        assert float(ours["last_loss"]) == pytest.approx(float(theirs["last_loss"]), rel=1e-5)
    resume(run)
    (model / "config.json").write_text('{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}')
    with pytest.raises(UnsupportedModelError, match=r"natively: .*SeedOss"):
        read_config(model)
