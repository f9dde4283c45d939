"""Search and early exit as pure decisions: numbers and events in, decisions out; no torch, no clock, no I/O."""

from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.evaluation_times import EvaluationPlan, EvaluationSettings, plan_candidate, plan_evaluation_rows
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.replay import RecordedCurve, ReplayReport, replay_curves
from cohort.tuning.samplers import Sampler, build_sampler
from cohort.tuning.search_feedback import SearchFeedback
from cohort.tuning.space import SearchSpace
from cohort.tuning.space_syntax import parse_space
from cohort.tuning.study import Study
from cohort.tuning.study_trial import BestCheckpoint, StudyError
from cohort.tuning.trial_status import TrialStatus

__all__ = [
    "BestCheckpoint",
    "Candidate",
    "Decision",
    "DecisionKind",
    "EarlyExitSettings",
    "EvaluationPlan",
    "EvaluationSettings",
    "ObjectiveMetric",
    "Reason",
    "RecordedCurve",
    "ReplayReport",
    "Sampler",
    "SearchFeedback",
    "SearchSpace",
    "Study",
    "StudyError",
    "TrialStatus",
    "build_sampler",
    "parse_space",
    "plan_candidate",
    "plan_evaluation_rows",
    "replay_curves",
]
