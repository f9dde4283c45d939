"""``cohort serve RUN``, the process with its signals, and keys."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import httpx
import pytest

from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.cli.main import main
from cohort.core.errors import InputError
from cohort.service.engine_thread import ServerClosingError
from cohort.service.listening import listen
from cohort.service.opening import open_served
from cohort.service.server import run_server
from cohort.service.settings import ServedSettings, ServerLimits, ServerSettings
from tests.cli.tiny_task import write_tiny_task
from tests.service.running_server import running, write_adapter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    task = write_tiny_task(folder)
    with pytest.raises(SystemExit) as caught:
        main(["tune", str(task), "-o", str(folder / "sums")])
    assert caught.value.code in (0, None)
    return folder / "sums"


def test_a_run_serves_its_best_adapter_and_trials(run: Path) -> None:
    settings = ServedSettings(model=str(run), trials=(0, 1), names=("base",), gpus=0)
    expected = [
        generate_from_run(run, ["1+2="], settings=GenerationSettings(max_new_tokens=8, is_raw=True), trial_id=trial)
        for trial in (0, 1)
    ]
    with running(settings) as server:
        answers = [server.complete(f"sums-trial-{trial}", "1+2=", max_tokens=8) for trial in (0, 1)]
    assert answers == [each.answers[0] for each in expected]
    with running(ServedSettings(model=str(run), gpus=0)) as server:
        best = generate_from_run(run, ["1+2="], settings=GenerationSettings(max_new_tokens=8, is_raw=True))
        assert server.complete("sums", "1+2=", max_tokens=8) == best.answers[0]


def test_keys_guard_the_api_and_nothing_else(run: Path) -> None:
    with running(ServedSettings(model=str(run), gpus=0), ServerSettings(api_keys=("one", "two"))) as server:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer three"}, 401),
            ({"Authorization": "Basic one"}, 401),
            ({"Authorization": "Bearer one"}, 200),
            ({"Authorization": "bearer two"}, 200),
        ):
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == status
        assert httpx.get(f"{server.url}/health").status_code == 200
        # without the option nothing is loaded at run time
        answer = server.post(
            "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "x"}, headers={"Authorization": "Bearer one"}
        )
        assert answer.status_code == 403
        assert "--allow-runtime-lora" in answer.json()["error"]["message"]


def test_a_server_drains_on_sigterm(run: Path) -> None:
    loop, limits = asyncio.new_event_loop(), ServerLimits(drain_seconds=30)
    opened = open_served(ServedSettings(model=str(run), gpus=0), limits)
    seen: list[str] = []

    def ask(url: str) -> None:
        body = {"model": "sums", "prompt": "1", "max_tokens": 110, "ignore_eos": True, "stream": True, "seed": 1}
        body["stream_options"] = {"include_usage": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            for line in response.iter_lines():
                if line:
                    seen.append(line)
                if len(seen) == 2:
                    signal.raise_signal(signal.SIGTERM)

    asking: list[threading.Thread] = []

    def begin(url: str) -> None:
        asking.append(threading.Thread(target=ask, args=(url,)))
        asking[0].start()

    before = signal.getsignal(signal.SIGTERM)
    with listen("127.0.0.1", 0) as listener:
        assert run_server(opened, ServerSettings(limits=limits), listener=listener, on_ready=begin)
    asking[0].join(120)
    assert seen[-1] == "data: [DONE]"
    assert '"completion_tokens": 110' in seen[-2]
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ServerClosingError):
        opened.thread.submit([], loop=loop)
    loop.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--allow-runtime-lora"], "without --lora-root"),
        (["--lora-root", "."], "without --allow-runtime-lora"),
        (["--allow-runtime-lora", "--lora-root", "nowhere"], "which is no directory"),
        (["--adapters", "nowhere"], "no such directory"),
        (["--trial", "99"], "99"),
        (["--kv-cache-gib", "0.0000001"], "for keys and values"),
        (["--max-model-len", "129"], "at most 128, the model's context"),
        (
            ["--max-model-len", "100", "--kv-cache-gib", "0.000008"],
            "100, with room for the keys and values of 32 tokens",
        ),
        (["--max-num-seqs", "40", "--max-num-batched-tokens", "32"], "40 with --max-num-batched-tokens 32"),
        (["--quantization", "int3"], "fp8 | int8"),
        (["-tp", "3"], "3 ranks for a model with 4 attention heads"),
        (["--kv-cache-gib", "0"], "0 GiB for keys and values"),
        (["--host", "203.0.113.77"], "where no server can listen"),
    ],
)
def test_wrong_options_are_reported(
    run: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", str(run), "--port", "0", "--gpus", "0", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_wrong_sources_are_refused(run: Path, tmp_path: Path) -> None:
    def refused(**settings: object) -> str:
        with pytest.raises(InputError) as caught:
            open_served(ServedSettings(gpus=0, **settings), ServerLimits())  # type: ignore[arg-type]
        return str(caught.value)

    model = run.parent / "model"
    assert "Name its base model and add --adapters" in refused(model=str(run / "best"))
    assert "which is no run" in refused(model=str(model), trials=(1,))
    (tmp_path / "queue.db").touch()
    assert "a queue of tasks, not a run" in refused(model=str(tmp_path))
    (tmp_path / "queue.db").unlink()
    write_adapter(model, tmp_path / "one", r=4, seed=0)
    write_adapter(model, tmp_path / "deep" / "one", r=4, seed=0)
    assert "a second adapter named 'one'" in refused(
        model=str(model), adapters=(str(tmp_path / "one"), str(tmp_path / "deep"))
    )


def test_a_sweep_publishes_its_best_adapter(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent
    settings = ServerSettings(api_keys=("key",), lora_root=folder)
    task = str(folder / "task.yaml")

    def tuned(*options: str) -> int:
        with pytest.raises(SystemExit) as caught:
            main(["tune", task, "-o", str(folder / "published"), *options])
        return int(str(caught.value.code or 0))

    with running(ServedSettings(model=str(folder / "model"), names=("base",), gpus=0), settings) as server:
        assert tuned("--publish", server.url) == 2
        assert "Set COHORT_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("COHORT_API_KEY", "key")
        assert tuned("--publish", server.url, "--publish-as", "base") == 2
        assert "Choose another name with --publish-as" in capsys.readouterr().err
        assert tuned("--publish-as", "x") == 2
        assert not (folder / "published").exists(), "a server that refuses is found before training"
        assert tuned("--publish", f"{server.url}/v1") == 0
        best = generate_from_run(
            folder / "published", ["1+2="], settings=GenerationSettings(max_new_tokens=8, is_raw=True)
        )
        headers = {"Authorization": "Bearer key"}
        body = {"model": "published", "prompt": "1+2=", "max_tokens": 8, "temperature": 0}
        answer = server.post("/v1/completions", body, headers=headers)
        assert answer.json()["choices"][0]["text"] == best.answers[0]
        assert server.post("/v1/unload_lora_adapter", {"lora_name": "published"}, headers=headers).status_code == 200
        # a run that was cut off before it could tell the server tells it when it is resumed
        monkeypatch.setattr("cohort.runs.results.verdicts.no_gain", lambda _: "nothing beats the base model")
        with pytest.raises(SystemExit) as caught:
            main(["resume", str(folder / "published"), "--publish", server.url])
        assert caught.value.code in (0, None)
        answer = server.post("/v1/completions", body, headers=headers)
        assert answer.json()["choices"][0]["text"] == best.answers[0]
        assert "warning: nothing beats the base model" in capsys.readouterr().err
    assert tuned("--on-existing", "resume", "--publish", server.url) == 2
    assert "Start the server, or correct the address" in capsys.readouterr().err


def test_a_quantised_run_is_served_in_the_format_it_trained_in(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["tune", str(write_tiny_task(tmp_path)), "-o", str(tmp_path / "sums"), "--quantization", "int8"])
    run = str(tmp_path / "sums")
    settings = GenerationSettings(max_new_tokens=8, is_raw=True)
    expected = generate_from_run(tmp_path / "sums", ["1+2="], settings=settings)
    with running(ServedSettings(model=run, gpus=0)) as server:
        assert server.complete("sums", "1+2=", max_tokens=8) == expected.answers[0]
        assert "computing on cpu in float32, weights in int8" in server.opened.notes
    opened = open_served(ServedSettings(model=run, gpus=0, quantization="none"), ServerLimits())
    note = "the run trained with quantization: int8; the base model is served with none, and answers differ"
    assert note in opened.notes
    opened.model.pool.close()
    with pytest.raises(InputError, match="int8 with --tensor-parallel-size 2"):
        open_served(ServedSettings(model=run, gpus=0, tensor_parallel_size=2), ServerLimits())
