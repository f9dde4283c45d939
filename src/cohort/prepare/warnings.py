"""Warnings about tasks that are valid, but rarely what their authors meant: shown before anything trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cohort.adapters.modules_to_save.saved_modules import HEAD, SAVED_NAMES
from cohort.core.units import counted
from cohort.data.chat import unknown_end_of_answers
from cohort.data.problems import ProblemKind
from cohort.data.setting_refusals import template_fields
from cohort.metrics import LOSS, REWARD_ACCURACY, needs_generation
from cohort.metrics.normalization import find_answer, last_number
from cohort.models.untrained_tokens import looks_untrained
from cohort.prepare.adapters.block_checks import block_warnings
from cohort.prepare.inputs import TaskInputs
from cohort.prepare.objectives import searched_of_the_loss, task_objective
from cohort.prepare.trials import PlannedTrial
from cohort.prepare.unread_keys import unread_warnings
from cohort.tasks.hyperparameters import SEARCHABLE
from cohort.tasks.task_file import TaskFile
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS, readers_of
from cohort.tuning.evaluation_times import EvaluationPlan
from cohort.tuning.parameters import Conditional, Constant
from cohort.tuning.samplers import sampler_kind

__all__ = ["task_warnings"]

# from this share of rows left out or cut, max_length is likelier wrong than the rows
_MUCH_OF_THE_ROWS = 0.1
# a mean over fewer rows is mostly noise: its standard error is a quarter of the rows' own spread
_FEW_ROWS = 16
# a stray character does no harm; from this share of the tokens something regular is lost, such as every newline
_MANY_UNKNOWN = 0.01
_CHARACTERS_SHOWN = 5


def task_warnings(
    task: TaskFile, inputs: TaskInputs, *, trials: Sequence[PlannedTrial], plan: EvaluationPlan
) -> Iterator[str]:
    """Yield a warning, with what to do, for everything in ``task`` that is allowed but looks like a mistake."""
    yield from _row_warnings(task, inputs)
    yield from _shared_row_warnings(inputs)
    yield from _unknown_token_warnings(inputs)
    yield from _answer_warnings(task, inputs)
    yield from _template_warnings(task, inputs)
    yield from _end_warnings(task, inputs)
    yield from _rank_warnings(inputs, trials)
    yield from _whole_module_warnings(task, inputs)
    num_rows = len(inputs.data.train) // task_objective(task).group_size
    largest = max(trial.spec.batch_size for trial in trials)
    if largest > num_rows:
        yield (
            f"batch_size {largest} is more than the {counted(num_rows, 'row')} to train on: each step takes all "
            "of them, as a smaller batch_size would; lower batch_size"
        )
    yield from block_warnings(trials, linears=inputs.layout.linears, config=inputs.config)
    yield from _search_warnings(task, inputs)
    yield from _optimizer_warnings(task, trials)
    yield from unread_warnings(task)
    yield from _exit_warnings(task, trials)
    yield from _loss_warnings(task, trials)
    if plan.cost_fraction > 1:
        # generated tokens count as evaluation, and are most of it where answers may be long
        tokens = "evaluation.max_new_tokens or " if any(map(needs_generation, task.evaluation.measured)) else ""
        yield (
            f"evaluations cost more than training ({100 * plan.cost_fraction:.3g} % of its compute); raise "
            f"evaluation.every_fraction, lower {tokens}evaluation.warmup_evaluations, or train for more steps"
        )


def _row_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    report = inputs.data.report
    read = report.lengths
    for kind, what in ((ProblemKind.TOO_LONG, "dropped"), (ProblemKind.TRUNCATED, "cut")):
        count = report.counts.get(kind, 0)
        if read.num_rows and count / read.num_rows >= _MUCH_OF_THE_ROWS:
            yield (
                f"{100 * count / read.num_rows:.2g} % of the rows ({count} of {read.num_rows}) are {what}: they have "
                f"more than dataset.max_length = {report.max_length} tokens (the median row has {read.median}, the "
                f"longest {read.maximum}); {_for_long_rows(inputs)}"
            )
    num_validation = report.num_validation_rows
    if num_validation < _FEW_ROWS:
        where = "" if isinstance(task.dataset.validation, tuple) else ", raise the share dataset.validation"
        yield (
            f"{counted(num_validation, 'row')} {'is' if num_validation == 1 else 'are'} left for validation: a "
            f"difference between trials on so few is mostly chance; add rows{where} or name a validation file"
        )


def _for_long_rows(inputs: TaskInputs) -> str:
    """Return what to do about long rows; ``max_length`` cannot exceed the model's context."""
    report = inputs.data.report
    if report.max_length < inputs.config.max_position_embeddings:
        return "raise max_length"
    way = "write on_long_rows: split" if report.format == "text" else "shorten them"
    return f"the model's context is no longer, so {way}, or choose a model with a longer one"


def _shared_row_warnings(inputs: TaskInputs) -> Iterator[str]:
    report = inputs.data.report
    for kind, name, also, num_rows in (
        (ProblemKind.IN_TRAIN_AND_VALIDATION, "validation", "trained on", report.num_validation_rows),
        (ProblemKind.IN_TEST_AND_ANOTHER, "test", "trained on or validated on", report.num_test_rows),
    ):
        if count := report.counts.get(kind, 0):
            first = ", ".join(report.lines[kind][:3])
            yield (
                f"{count} of {counted(num_rows, f'{name} row')} {'is' if count == 1 else 'are'} also {also}, so what "
                f"is measured there is too good (first {first}); remove them from one of the two"
            )


def _unknown_token_warnings(inputs: TaskInputs) -> Iterator[str]:
    tokenizer, rows = inputs.tokenizer, inputs.data.train
    unknown = getattr(tokenizer, "unk_token_id", None)
    # some tokenizers name as unknown the token that ends a text, and know every byte
    if unknown is None or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        return
    count, total = int((rows.tokens_T == unknown).sum()), len(rows.tokens_T)
    if count < _MANY_UNKNOWN * total:
        return
    texts = inputs.data.all_validation
    # one of a kind at a time: how a tokenizer joins characters does not matter then
    characters = sorted(set("".join((*texts.prompts, *texts.references))))
    lost = [text for text in characters if unknown in tokenizer.encode(text, add_special_tokens=False)]
    shown = ", ".join(map(repr, lost[:_CHARACTERS_SHOWN])) + (", ..." if len(lost) > _CHARACTERS_SHOWN else "")
    which = f", for {shown}" if lost else ""
    yield (
        f"{100 * count / total:.2g} % of the training tokens ({count} of {total}) are {tokenizer.unk_token}, the token "
        f"for what the tokenizer does not know{which}: answers with it cannot be read back; replace what it stands "
        "for, or choose a model whose tokenizer knows it"
    )


def _answer_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    rows, evaluation = inputs.data.all_validation, task.evaluation
    expected = [text for text, prompt in zip(rows.references, rows.prompts, strict=True) if prompt]
    pattern = evaluation.options.answer_pattern
    if not expected or not evaluation.measured:
        return
    if pattern is not None and not any(find_answer(text, pattern) is not None for text in expected):
        yield (
            f"evaluation.answer_pattern {pattern!r} is found in none of the "
            f"{counted(len(expected), 'expected answer')} (the first is {expected[0]!r:.60}): a model that learns "
            "to answer like them scores 0; correct the pattern"
        )
        return
    answers = (find_answer(text, pattern) or text for text in expected)
    if "number_match" in evaluation.measured and all(last_number(text) is None for text in answers):
        yield (
            f"none of the {counted(len(expected), 'expected answer')} (the first is {expected[0]!r:.60}) holds a "
            "number, so every answer scores 0 in number_match; choose another metric"
        )


def _template_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    template = task.dataset.prompt_template
    if template is not None and not template_fields(template):
        yield (
            f"dataset.prompt_template has no {{column}} field, so every row is asked the same: {template!r:.80}; "
            'write one such as "Question: {question}\nAnswer:\n"'
        )
    tokenizer = inputs.tokenizer
    if not inputs.data.report.is_chat:
        return
    end, count = unknown_end_of_answers(tokenizer)
    if end is None:
        return
    yield (
        f"the chat template ends an answer with {end}, which is no token of this tokenizer but {count} of text: "
        f"{tokenizer.eos_token} is trained behind it, so that answers end, and they hold {end} as text (exact_match is "
        f"0, and a server needs it as a stop string); choose a template that ends answers with {tokenizer.eos_token} "
        f"(dataset.chat_template: plain or zephyr), or a base model whose tokenizer has {end}"
    )


def _end_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    token_id = getattr(inputs.tokenizer, "eos_token_id", None)
    if token_id is None or not any(map(needs_generation, task.evaluation.measured)):
        return
    if HEAD in task.lora.modules_to_save:
        # each trial learns to write it
        return
    if looks_untrained(inputs.model_directory, int(token_id)):
        token = inputs.tokenizer.convert_ids_to_tokens(int(token_id))
        yield (
            f"the base model seems never to have learned its end-of-sequence token {token}: its output row is zero or "
            "that of many other tokens, and adapters do not change it. Answers may never end, and score 0 where they "
            "must be exact; choose a metric that finds the answer (contains, number_match, evaluation.answer_pattern) "
            "or needs none (loss, choice_accuracy), or train the head: lora.modules_to_save: [embed_tokens, lm_head]"
        )


def _whole_module_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    """Warn where one of two modules that share a table is trained: the other keeps the base model's, as in PEFT."""
    named = task.lora.modules_to_save
    if inputs.config.tie_word_embeddings and len(named) == 1:
        other = next(name for name in SAVED_NAMES if name not in named)
        yield (
            f"the base model has one table for embedding and head, and lora.modules_to_save trains a copy for "
            f"{named[0]} alone, as PEFT does: {other} keeps the base model's rows; name both where tokens are new"
        )


def _rank_warnings(inputs: TaskInputs, trials: Sequence[PlannedTrial]) -> Iterator[str]:
    widest = max(min(shape) for shape in inputs.layout.linears.values())
    above = sorted({r for trial in trials if (r := trial.spec.adapter.largest_rank) > widest})
    if above:
        yield (
            f"r {', '.join(map(str, above))} is above {widest}, the rank of the widest adapted layer itself: more "
            f"of it adds memory and nothing that can be learned; write r of at most {widest}"
        )


def _loss_warnings(task: TaskFile, trials: Sequence[PlannedTrial]) -> Iterator[str]:
    """Warn where trials minimise losses of different forms or scales and are still compared by them."""
    if task.evaluation.metric != LOSS or REWARD_ACCURACY not in task.objective.declared.measures:
        return
    searched = searched_of_the_loss(task)
    if searched and len({trial.spec.objective for trial in trials}) > 1:
        what = " and ".join(filter(None, (", ".join(searched[:-1]), searched[-1])))
        yield (
            f"trials that differ in {what} have losses of different scales, and early exit and the choice of the best "
            "compare them: the trial with the lowest loss need not prefer the better answers most often; write "
            f"evaluation.metric: {REWARD_ACCURACY}"
        )


def _search_warnings(task: TaskFile, inputs: TaskInputs) -> Iterator[str]:
    search, found = task.search, inputs.num_trials
    # a resolved task has the default written out, which says nothing
    if search.trials in (found, type(search).model_fields["trials"].default):
        return
    if sampler_kind(search.sampler).takes_whole_space:
        hint = f"write sampler: random to draw {search.trials} of them" if search.trials < found else "remove it"
        yield (
            f"search.trials is {search.trials}, which sampler: {search.sampler} does not read: all "
            f"{counted(found, 'configuration')} are trained; {hint}"
        )
    elif found < search.trials:
        yield (
            f"search.trials is {search.trials}, but the space has only {counted(found, 'configuration')}, each of "
            "which is trained once; add values, or write sampler: grid"
        )


def _optimizer_warnings(task: TaskFile, trials: Sequence[PlannedTrial]) -> Iterator[str]:
    """Warn of keys that the optimizers of trials do not read: AdamW's betas with SGD, say."""
    optimizers = sorted({trial.spec.optim for trial in trials})
    for key in sorted({key for entry in OPTIMIZER_DECLARATIONS.built_in() for key in entry.reads}):
        readers = readers_of(key)
        unread = [name for name in optimizers if name not in readers]
        if key in task.search.space and unread and not isinstance(task.search.space[key], Constant | Conditional):
            yield (
                f"search.space.{key} is searched, but optim: {', '.join(unread)} does not read it: trials that differ "
                f"in it alone are the same; write {key}: {{values: {SEARCHABLE[key].example}, "
                f"when: {{optim: {readers[0]}}}}}, or remove it"
            )
        # one that some trial reads says something; a resolved task has the default written out, which does not
        elif unread == optimizers and getattr(task.training, key) != SEARCHABLE[key].field.default:
            yield (
                f"training.{key} is {getattr(task.training, key):g}, which optim: {', '.join(unread)} does not read; "
                f"remove it, or write optim: {readers[0]}"
            )


def _exit_warnings(task: TaskFile, trials: Sequence[PlannedTrial]) -> Iterator[str]:
    settings = task.early_exit_settings()
    early = [trial for trial in trials if trial.candidate.warmup_steps < 2 <= trial.candidate.planned_steps]
    # a floor of two steps and more keeps every rule from comparing trials before, however short their warm-up is
    is_floored = settings.common.compare_after_steps > 1
    if settings.kept_share() < 1 and not is_floored and early and len(trials) > 1:
        which = "trials" if len(early) == len(trials) else f"{len(early)} of {len(trials)} trials"
        yield (
            f"{which} are first compared after one step, when little but chance tells them apart, and the weak ones "
            "stop there; raise early_exit.compare_after_steps or early_exit.warmup_fraction"
        )
