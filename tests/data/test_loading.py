from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError, Problem
from cohort.data.cache import default_cache_directory
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.report import DataReport
from cohort.data.settings import DatasetSettings
from cohort.data.tokenise import encode_prompt
from cohort.prepare.data_notes import split_notes

Write = Callable[..., Path]
MakeTokenizer = Callable[..., PreTrainedTokenizerBase]


def pairs(count: int, *, start: int = 0) -> list[dict[str, str]]:
    return [{"prompt": f"Question: {n}\n", "completion": f"answer {n}"} for n in range(start, start + count)]


def load(tokenizer: PreTrainedTokenizerBase, *, cache: Path | None = None, **settings: Any) -> LoadedDataset:
    evaluation = settings.pop("evaluation_max_examples", None)
    return load_dataset(
        DatasetSettings(**settings),
        tokenizer=tokenizer,
        evaluation_max_examples=evaluation,
        cache_dir=cache,
        use_cache=cache is not None,
    )


def problems_of(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load(tokenizer, **settings)
    return list(caught.value.problems)


def test_a_hub_test_split_used_for_validation_is_reported(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("datasets")
    splits = {"train": pairs(6), "test": pairs(3, start=6)}
    module.load_dataset = lambda name, config: splits  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    for status in ("written", "hit"):
        data = load(tokenizer, cache=tmp_path / "cache", train="org/sums", validation="org/sums")
        assert data.cache_status == status
        assert "validated on test split: 1 (org/sums)" in data.report.summary()
        (note,) = split_notes(data.report, max_length=1024)
        assert "no validation split, so trials are compared on its test split" in note
    splits["validation"] = pairs(3, start=6)
    renamed = load(tokenizer, train="org/sums", validation="org/sums")
    assert split_notes(renamed.report, max_length=1024) == ()


def test_a_share_splits_all_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(tokenizer, train=write_jsonl(pairs(50)), validation=0.2)
    assert (len(data.train), len(data.validation)) == (40, 10)
    assert not set(data.train.prompts) & set(data.validation.prompts)
    report = data.report
    assert (report.num_rows_read, report.num_train_rows, report.num_validation_rows) == (50, 40, 10)
    assert report.num_trained_tokens == int(data.train.trained_T.sum())
    assert report.format == "prompt_completion"
    place = data.train.prompts.index("Question: 7\n") if "Question: 7\n" in data.train.prompts else None
    if place is not None:
        assert data.train.references[place] == "answer 7"
        assert data.train.sources[place].endswith("train.jsonl:8")


def test_rows_satisfy_the_contract_of_tokenised_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = load(tokenizer, train=write_jsonl(pairs(20))).train
    assert rows.tokens_T.dtype == np.int32
    assert rows.trained_T.dtype == np.bool_
    assert rows.offsets.dtype == np.int64
    assert rows.offsets[0] == 0
    assert rows.offsets[-1] == len(rows.tokens_T) == len(rows.trained_T)
    for index in range(len(rows)):
        sample = rows.sample(index)
        assert len(sample.tokens) >= 2
        assert not sample.trained[0]
        assert sample.trained.any()


def test_a_validation_file_and_its_leaks(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    train = write_jsonl(pairs(5))
    validation = write_jsonl(pairs(3, start=4), name="validation.jsonl")
    report = load(tokenizer, train=train, validation=validation).report
    assert (report.num_train_rows, report.num_validation_rows) == (5, 3)
    assert report.counts == {"in_train_and_validation": 1}
    assert report.lines["in_train_and_validation"] == (f"{validation}:1",)


def test_test_rows_are_kept_apart_and_their_leaks_named(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path
) -> None:
    files = {
        "train": write_jsonl(pairs(6)),
        "validation": write_jsonl(pairs(3, start=6), name="validation.jsonl"),
        "test": write_jsonl(pairs(4, start=8), name="test.jsonl"),
    }
    for loaded in (
        load(tokenizer, cache=tmp_path / "cache", **files),
        load(tokenizer, cache=tmp_path / "cache", **files),
    ):
        assert loaded.test is not None
        assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (6, 3, 4)
        assert loaded.report.num_test_rows == 4
        assert loaded.report.lines["in_test_and_another"] == (f"{files['test']}:1",)
    without = load(tokenizer, train=files["train"], validation=files["validation"])
    assert (without.test, without.report.test_input) == (None, None)
    assert without.report.train_input == loaded.report.train_input


def test_the_same_file_for_both_splits(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(4))
    data = load(tokenizer, train=path, validation=path)
    assert (len(data.train), len(data.validation)) == (4, 4)
    assert data.report.counts["in_train_and_validation"] == 4


def test_duplicates_are_counted_and_never_straddle(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    data = load(tokenizer, train=write_jsonl(pairs(10) * 3), validation=0.3)
    assert data.report.counts["duplicate"] == 20
    assert not set(data.train.prompts) & set(data.validation.prompts)


def test_evaluation_rows_are_chosen_by_seed(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(60))
    chosen = [
        load(tokenizer, train=path, validation=0.5, seed=seed, evaluation_max_examples=5).validation.prompts
        for seed in (0, 0, 1)
    ]
    assert len(chosen[0]) == 5
    assert chosen[0] == chosen[1] != chosen[2]


def test_all_problems_of_all_files_at_once(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows: list[Any] = pairs(20)
    rows[2] = {"prompt": "no answer"}
    path = write_jsonl(rows)
    path.write_text("".join(line if n != 16 else "{bad\n" for n, line in enumerate(path.read_text().splitlines(True))))
    validation = write_jsonl([{"prompt": "P", "completion": ""}], name="validation.jsonl")
    problems = problems_of(
        tokenizer, train=[str(path), "missing.jsonl"], validation=str(validation), on_long_rows="error", max_length=8
    )
    where = {str(problem.where) for problem in problems}
    assert {"dataset.train", f"{path}:3", f"{path}:17", f"{validation}:1"} <= where
    assert all(problem.hint for problem in problems)


def test_bad_rows_can_be_skipped_and_are_counted(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([*pairs(10), {"prompt": "no answer"}, ["list"]])
    report = load(tokenizer, train=path, on_bad_rows="skip").report
    assert report.counts == {"unreadable": 1, "malformed": 1}
    assert report.num_rows_read == 12
    assert report.num_train_rows + report.num_validation_rows == 10
    assert "no 'completion'" in report.samples["malformed"][0]
    assert f"malformed: 1 ({path}:11)" in report.summary()


def test_a_long_list_of_problems_is_cut_and_says_so(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    # one in each file: the rows of a file with the same problem are one problem
    paths = [write_jsonl([*pairs(1), {"prompt": "P"}], name=f"train-{number}.jsonl") for number in range(30)]
    problems = problems_of(tokenizer, train=paths)
    assert len(problems) == 21
    assert problems[-1].found == "10 more problems like these"
    with pytest.raises(InputError) as caught:
        load_dataset(DatasetSettings(train=paths), tokenizer=tokenizer, use_cache=False, max_problems=None)
    assert len(caught.value.problems) == 30


def test_what_many_rows_have_alike_is_one_problem(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    empty = {"prompt": "P", "completion": ""}
    path = write_jsonl([*pairs(5), *[empty] * 20, *pairs(2), empty, {"prompt": "P"}])
    grouped, single = problems_of(tokenizer, train=path)
    assert str(grouped.where) == f"{path}:6-25, 28"
    assert grouped.found == "an empty 'completion' (the first of 21 such rows)"
    assert "on_bad_rows: skip" in grouped.hint
    assert str(single.where) == f"{path}:29"


@pytest.mark.parametrize("rule", ["drop", "truncate", "error"])
def test_long_rows(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, rule: str) -> None:
    rows = [*pairs(9), {"prompt": "Q\n", "completion": "word " * 50}]
    settings: dict[str, Any] = {"train": write_jsonl(rows), "on_long_rows": rule, "max_length": 40}
    if rule == "error":
        (problem,) = problems_of(tokenizer, **settings)
        assert str(problem.where).endswith("train.jsonl:10")
        assert "at most max_length = 40" in problem.allowed
        return
    data = load(tokenizer, **settings)
    assert max(data.train.lengths.max(), data.validation.lengths.max()) <= 40
    kind, kept = ("too_long", 9) if rule == "drop" else ("truncated", 10)
    assert data.report.counts == {kind: 1}
    assert data.report.num_train_rows + data.report.num_validation_rows == kept
    assert data.report.lengths.maximum > 40
    if rule == "truncate":
        longest = data.train if data.train.lengths.max() == 40 else data.validation
        tokens = longest.sample(int(np.argmax(longest.lengths))).tokens
        # the text does not end here, so nothing may say that it does
        assert tokens[-1] != tokenizer.eos_token_id


def test_a_row_of_exactly_max_length_is_kept(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl([*pairs(10), {"prompt": "Question\n", "completion": "a longer answer than the others"}])
    longest = load(tokenizer, train=path).report.lengths.maximum
    assert not load(tokenizer, train=path, max_length=longest).report.counts
    assert load(tokenizer, train=path, max_length=longest - 1).report.counts == {"too_long": 1}


def test_max_train_samples_takes_a_seeded_subset(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    path = write_jsonl(pairs(50))
    whole = load(tokenizer, train=path, validation=0.2)
    some = load(tokenizer, train=path, validation=0.2, max_train_samples=10)
    assert (len(some.train), some.report.num_usable_train_rows) == (10, 40)
    assert set(some.train.prompts) < set(whole.train.prompts)
    assert some.validation.prompts == whole.validation.prompts
    assert some.report.num_trained_tokens == int(some.train.trained_T.sum())
    assert "10 of 40 usable (max_train_samples)" in some.report.summary()
    assert load(tokenizer, train=path, validation=0.2, max_train_samples=10).train.prompts == some.train.prompts
    other = load(tokenizer, train=path, validation=0.2, max_train_samples=10, seed=1)
    assert set(other.train.prompts) != set(some.train.prompts)
    assert len(load(tokenizer, train=path, validation=0.2, max_train_samples=99).train) == 40


def test_max_train_samples_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="max_train_samples"):
        DatasetSettings(train="x.jsonl", max_train_samples=0)


def test_a_row_whose_answer_is_cut_off_is_dropped(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [*pairs(9), {"prompt": "word " * 50, "completion": "answer"}]
    report = load(tokenizer, train=write_jsonl(rows), on_long_rows="truncate", max_length=40).report
    assert report.counts["empty_after_masking"] == 1
    assert report.lines["empty_after_masking"][0].endswith("train.jsonl:10")
    assert report.num_train_rows + report.num_validation_rows == 9


@pytest.mark.parametrize(("count", "share"), [(4, 0.1), (3, 0.9)])
def test_a_share_that_leaves_nothing(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, count: int, share: float
) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(count)), validation=share)
    assert str(problem.where) == "dataset.validation"
    assert f"a share of {share} of {count} usable rows, which leaves no row" in problem.found


def test_equal_rows_leave_nothing_to_validate(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(1) * 20))
    assert "leaves no row for validation" in problem.found


def test_rows_that_all_fall_out(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(5)), max_length=3)
    assert problem.found == "no usable row (too long: 5)"


def test_an_empty_file(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.touch()
    (problem,) = problems_of(tokenizer, train=path)
    assert (str(problem.where), problem.found) == (str(path), "no rows")


def test_preference_rows_are_recognised_and_refused_for_sft(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write
) -> None:
    rows = [{"prompt": "P", "chosen": f"C{n}", "rejected": f"R{n}"} for n in range(20)]
    (problem,) = problems_of(tokenizer, train=write_jsonl(rows))
    assert "preference rows" in problem.found
    data = load(tokenizer, train=write_jsonl(rows), format="prompt_completion", columns={"completion": "chosen"})
    assert data.report.num_rows_read == 20


def test_a_border_inside_a_token_is_reported(gpt2: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"prompt": "Answer: ", "completion": f"yes {n}"} for n in range(10)]
    report = load(gpt2, train=write_jsonl(rows)).report
    assert report.counts == {"border_inside_token": 10}


def test_chat_rows(make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write) -> None:
    tokenizer = make_tokenizer(chat_template=templates["llama_3"])
    rows = [
        {"messages": [{"role": "user", "content": f"Q{n}"}, {"role": "assistant", "content": f"A{n}"}]}
        for n in range(20)
    ]
    data = load(tokenizer, train=write_jsonl(rows))
    assert data.report.is_chat
    sample = data.train.sample(0)
    # the template writes the first token, the tokenizer would add another
    assert (sample.tokens == tokenizer.bos_token_id).sum() == 1
    reference = data.train.references[0]
    assert tokenizer.decode(sample.tokens[sample.trained]) == f"{reference}<|im_end|>"
    prompt = encode_prompt(data.train.prompts[0], tokenizer=tokenizer, is_chat=True)
    assert prompt == sample.tokens[: int(np.argmax(sample.trained))].tolist()


def test_a_conversation_without_a_trained_answer_is_dropped_and_counted(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    def row(number: int, weight: int) -> dict[str, Any]:
        answer = {"role": "assistant", "content": "A", "weight": weight}
        return {"messages": [{"role": "user", "content": f"Q{number}"}, answer]}

    path = write_jsonl([*[row(number, 1) for number in range(10)], row(10, 0)])
    report = load(make_tokenizer(chat_template=templates["chatml"]), train=path).report
    assert report.counts == {"empty_after_masking": 1}
    assert report.lines["empty_after_masking"] == (f"{path}:11",)


def test_chat_rows_need_a_chat_template(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    rows = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}] * 3
    (problem,) = problems_of(tokenizer, train=write_jsonl(rows))
    assert "without a chat template" in problem.found


def test_templates_that_rewrite_are_refused_by_line(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    tokenizer = make_tokenizer(chat_template=templates["drops_reasoning"])
    single = [
        {"messages": [{"role": "user", "content": f"Q{n}"}, {"role": "assistant", "content": "<think>t</think>A"}]}
        for n in range(10)
    ]
    double = {"messages": [*single[0]["messages"], *single[1]["messages"]]}
    path = write_jsonl([*single, double])
    (problem,) = problems_of(tokenizer, train=path)
    assert str(problem.where) == f"{path}:11"
    assert "rewrites earlier text" in problem.found
    assert load(tokenizer, train=path, on_bad_rows="skip").report.counts == {"template": 1}


def test_prompt_and_completion_in_two_forms_are_mixed(
    make_tokenizer: MakeTokenizer, templates: Mapping[str, str], write_jsonl: Write
) -> None:
    messages = {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]}
    path = write_jsonl([*pairs(3), messages])
    (problem,) = problems_of(make_tokenizer(chat_template=templates["chatml"]), train=path)
    assert str(problem.where) == f"{path}:4"


def test_a_tokenizer_without_eos_or_offsets_is_refused(make_tokenizer: MakeTokenizer, write_jsonl: Write) -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    (problem,) = problems_of(tokenizer, train=write_jsonl(pairs(5)))
    assert "without an end-of-sequence token" in problem.found


def test_the_report_is_json(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write) -> None:
    report = load(tokenizer, train=write_jsonl([*pairs(12), *pairs(2)])).report
    assert DataReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_encode_prompt_adds_what_training_had(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(adds_eos=True)
    ids = encode_prompt("Question\n", tokenizer=tokenizer, is_chat=False)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids
    assert encode_prompt("<s>Question\n", tokenizer=tokenizer, is_chat=False) == ids
    assert encode_prompt("Question\n", tokenizer=tokenizer, is_chat=True) == ids[1:]


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("sft/svamp.jsonl", {}),
        ("sft/gsm8k_test.jsonl", {"columns": {"prompt": "question", "completion": "answer"}}),
        ("text/tinystories.jsonl", {}),
    ],
)
def test_real_files(shared_data: Path, stories: PreTrainedTokenizerBase, file: str, settings: dict[str, Any]) -> None:
    data = load(stories, train=shared_data / "data" / file, max_length=512, **settings)
    report = data.report
    assert set(report.counts) <= {"too_long", "duplicate", "border_inside_token"}
    assert report.num_train_rows + report.num_validation_rows + report.counts.get("too_long", 0) == report.num_rows_read
    assert (data.train.tokens_T[data.train.offsets[:-1]] == stories.bos_token_id).all()
    assert (data.train.tokens_T[data.train.offsets[1:] - 1] == stories.eos_token_id).all()
    assert data.train.trained_T[data.train.offsets[1:] - 1].all()


def test_real_preference_file_is_recognised(shared_data: Path, stories: PreTrainedTokenizerBase) -> None:
    (problem,) = problems_of(stories, train=shared_data / "data/preference/polite_responses.jsonl")
    assert "preference rows" in problem.found


def test_default_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COHORT_CACHE_DIR", raising=False)
    assert default_cache_directory() == Path.home() / ".cache" / "cohort"
    monkeypatch.setenv("COHORT_CACHE_DIR", "/elsewhere")
    assert default_cache_directory() == Path("/elsewhere")
