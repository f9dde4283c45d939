"""Loops of the unmodified ``tinker_cookbook`` against a server: ``cookbook_loops.py URL MODEL FOLDER`` prints what they
reached.

It runs in an environment of its own (`make test-clients`), and imports nothing of Cohort. Data are made here; the
tokenizer is that of the folder MODEL, which is also the name of the model that is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import chz
import tinker
from tinker_cookbook import checkpoint_utils, renderers
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as sl_train
from tinker_cookbook.supervised.common import compute_mean_nll
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig, SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

RENDERER = "lines"
LARGEST = 2


class LineRenderer(renderers.Renderer):
    """A line for what is asked; an answer ends with the end of the sequence."""

    def get_stop_sequences(self) -> list[int]:
        return [self.tokenizer.eos_token_id]

    def render_message(self, message: Any, ctx: Any) -> renderers.base.RenderedMessage:
        if message["role"] == "assistant":
            return self._rendered("", f" {message['content']}{self.tokenizer.eos_token}")
        return self._rendered(f"{message['content']}\n", "")

    def _rendered(self, header: str, output: str) -> renderers.base.RenderedMessage:
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        return renderers.base.RenderedMessage(
            header=tinker.EncodedTextChunk(tokens=encode(header)),
            output=[tinker.EncodedTextChunk(tokens=encode(output))],
        )

    def _get_generation_suffix(self, role: Any, ctx: Any) -> list[int]:
        return []

    def parse_response(self, response: list[int]) -> tuple[renderers.Message, renderers.ParseTermination]:
        ended = response[-1:] == self.get_stop_sequences()
        content = self.tokenizer.decode(response[:-1] if ended else response).strip()
        found = renderers.ParseTermination.STOP_SEQUENCE if ended else renderers.ParseTermination.MALFORMED
        return renderers.Message(role="assistant", content=content), found


def ask(x: int, y: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {x} + {y}?"}


def answer(number: int) -> dict[str, str]:
    return {"role": "assistant", "content": str(number)}


def write_rows(path: Path, rows: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def last_state(log: Path, name: str | None = None) -> str:
    """Return the address of the last state that a loop has saved, or of the one of this name."""
    found = [each for each in checkpoint_utils.load_checkpoints_file(str(log)) if name in (None, each.name)]
    path: str | None = found[-1].state_path
    assert path is not None, found
    return path


def metrics_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


@chz.chz
class SmallSums(RLDatasetBuilder):
    """Batches of the cookbook's arithmetic problems with small numbers."""

    model_name: str
    group_size: int
    n_batches: int

    async def __call__(self) -> tuple[RLDataset, None]:
        renderer = renderers.get_renderer(RENDERER, get_tokenizer(self.model_name))
        return _SmallSums(renderer, self.group_size, self.n_batches), None


class _SmallSums(RLDataset):
    def __init__(self, renderer: Any, group_size: int, n_batches: int) -> None:
        self._renderer, self._group_size, self._n_batches = renderer, group_size, n_batches

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        return [
            ProblemGroupBuilder(
                env_thunk=partial(ArithmeticEnv, x, y, renderer=self._renderer), num_envs=self._group_size
            )
            for x in range(LARGEST + 1)
            for y in range(LARGEST + 1)
        ]

    def __len__(self) -> int:
        return self._n_batches


class CutOffError(Exception):
    """The loop ends in the middle."""


@chz.chz
class CutOff(SupervisedDatasetBuilder):
    """A dataset whose batch ``at`` cannot be had the first time."""

    builder: SupervisedDatasetBuilder
    at: int
    marker: str

    def __call__(self) -> tuple[SupervisedDataset, None]:
        dataset, _ = self.builder()
        return _CutOff(dataset, self.at, Path(self.marker)), None


class _CutOff(SupervisedDataset):
    def __init__(self, dataset: SupervisedDataset, at: int, marker: Path) -> None:
        self._dataset, self._at, self._marker = dataset, at, marker

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if index == self._at and not self._marker.exists():
            self._marker.touch()
            raise CutOffError
        batch: list[tinker.Datum] = self._dataset.get_batch(index)
        return batch

    def set_epoch(self, seed: int = 0) -> None:
        self._dataset.set_epoch(seed)

    def __len__(self) -> int:
        return len(self._dataset)


class Cookbook:
    """The cookbook's loops on one model, in one folder."""

    def __init__(self, url: str, model: str, folder: Path) -> None:
        self._url, self._model, self._folder = url, model, folder

    def _common(self, **changed: Any) -> ChatDatasetBuilderCommonConfig:
        known = {"model_name_for_tokenizer": self._model, "renderer_name": RENDERER, "max_length": 128}
        return ChatDatasetBuilderCommonConfig(**known, **changed)

    def _sums(self, name: str, *, seed: int, num: int, right: float) -> FromConversationFileBuilder:
        """Return conversations about sums, ``right`` of which are answered with the sum, and others with any number."""
        rng = random.Random(seed)
        rows = []
        for _ in range(num):
            x, y = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
            number = x + y if rng.random() < right else rng.randint(0, 2 * LARGEST)
            rows.append({"messages": [ask(x, y), answer(number)]})
        return FromConversationFileBuilder(
            common_config=self._common(batch_size=16), file_path=write_rows(self._folder / name, rows), test_size=16
        )

    def _supervised_config(self, log: Path, **changed: Any) -> sl_train.Config:
        known = {"model_name": self._model, "renderer_name": RENDERER, "base_url": self._url, "recipe_name": "sl"}
        return sl_train.Config(log_path=str(log), learning_rate=3e-3, lora_rank=16, **known, **changed)

    def supervised(self) -> dict[str, Any]:
        """Learn to answer with a number, which is right about every second time."""
        log = self._folder / "supervised"
        sums = self._sums("sums.jsonl", seed=0, num=320, right=0.5)
        config = self._supervised_config(log, dataset_builder=sums, num_epochs=3, eval_every=20, save_every=0)
        asyncio.run(sl_train.main(config))
        found = metrics_of(log)
        return {
            "losses": [row["train_mean_nll"] for row in found],
            "tests": [row["test/nll"] for row in found if "test/nll" in row],
            "path": last_state(log),
        }

    def resumed(self, start: str) -> dict[str, Any]:
        """Be cut off in the tenth step, resume from the eighth, and take the same steps in a plain loop."""
        log = self._folder / "resumed"
        sums = self._sums("more_sums.jsonl", seed=1, num=208, right=1.0)
        builder = CutOff(builder=sums, at=10, marker=str(self._folder / "cut_off"))
        config = self._supervised_config(
            log,
            dataset_builder=builder,
            load_checkpoint_path=start,
            lr_schedule="constant",
            # saved after the step that it is named after, which is taken again
            submit_ahead=0,
            save_every=8,
            eval_every=0,
        )
        with contextlib.suppress(CutOffError):
            asyncio.run(sl_train.main(config))
        path = last_state(log, name="000008")
        asyncio.run(sl_train.main(config))
        batches, _ = builder()
        batches.set_epoch(0)
        return {
            "steps": [row["step"] for row in metrics_of(log)],
            "losses": [row["train_mean_nll"] for row in metrics_of(log)][-4:],
            "plain": self._plain_steps(path, [batches.get_batch(place) for place in range(8, 12)]),
        }

    def _plain_steps(self, path: str, batches: Sequence[list[tinker.Datum]]) -> list[float]:
        client = (
            tinker.ServiceClient(base_url=self._url).create_training_client_from_state_with_optimizer(path).result()
        )
        found = []
        for batch in batches:
            passed = client.forward_backward(batch, "cross_entropy")
            numbers = tinker.AdamParams(learning_rate=3e-3, beta1=0.9, beta2=0.95, eps=1e-8)
            client.optim_step(numbers).result()
            logprobs = [each["logprobs"] for each in passed.result().loss_fn_outputs]
            found.append(compute_mean_nll(logprobs, [datum.loss_fn_inputs["weights"] for datum in batch]))
        return found

    def _checkpoints_of(self, path: str) -> list[str]:
        rest = tinker.ServiceClient(base_url=self._url).create_rest_client()
        run = rest.get_training_run_by_tinker_path(path).result().training_run_id
        return sorted(each.checkpoint_id for each in rest.list_checkpoints(run).result().checkpoints)

    def preferred(self, start: str) -> dict[str, Any]:
        """Prefer sums that are right to others (direct preference optimization)."""
        rng = random.Random(2)
        rows = []
        for _ in range(128):
            x, y = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
            wrong = rng.choice([number for number in range(2 * LARGEST + 1) if number != x + y])
            compared = {
                "prompt_conversation": [ask(x, y)],
                "completion_A": [answer(x + y)],
                "completion_B": [answer(wrong)],
            }
            rows.append({"comparison": compared, "label": "A"})
        log = self._folder / "preferred"
        config = train_dpo.Config(
            log_path=str(log),
            model_name=self._model,
            recipe_name="dpo",
            renderer_name=RENDERER,
            dataset_builder=DPODatasetBuilderFromComparisons(
                common_config=self._common(batch_size=8),
                comparison_builder=ComparisonBuilderFromJsonl(
                    train_path=write_rows(self._folder / "comparisons.jsonl", rows),
                    test_path=write_rows(self._folder / "test_comparisons.jsonl", rows[:4]),
                ),
            ),
            load_checkpoint_path=start,
            learning_rate=1e-3,
            base_url=self._url,
            # a version for each evaluation, while that of the beginning is read in every step
            eval_every=2,
            save_every=0,
        )
        train_dpo.main(config)
        found = metrics_of(log)
        return {name: [row[name] for row in found] for name in ("dpo_loss", "accuracy", "margin")}

    def reinforced(self, start: str) -> dict[str, Any]:
        """Be rewarded for sums that are right."""
        log = self._folder / "reinforced"
        config = rl_train.Config(
            learning_rate=1e-3,
            dataset_builder=SmallSums(model_name=self._model, group_size=8, n_batches=30),
            model_name=self._model,
            recipe_name="rl",
            max_tokens=8,
            log_path=str(log),
            load_checkpoint_path=start,
            renderer_name=RENDERER,
            base_url=self._url,
            eval_every=0,
            save_every=15,
            # states that the loop deletes behind itself
            rolling_save_every=4,
        )
        asyncio.run(rl_train.main(config))
        rewards = [row["env/all/reward/total"] for row in metrics_of(log)]
        return {"rewards": rewards, "kept": self._checkpoints_of(last_state(log))}


def main() -> None:
    """Run the loops."""
    warnings.simplefilter("ignore")
    renderers.register_renderer(RENDERER, lambda tokenizer, _: LineRenderer(tokenizer))
    url, model, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    cookbook = Cookbook(url, model, folder)
    supervised = cookbook.supervised()
    start = supervised["path"]
    found = {
        "supervised": supervised,
        "resumed": cookbook.resumed(start),
        "preferred": cookbook.preferred(start),
        "reinforced": cookbook.reinforced(start),
    }
    print("FOUND " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
