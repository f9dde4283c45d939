"""Experiment trackers that a run may report to, next to its own report."""

from cohort.integrations.trackers.opening import TRACKER_NAMES, installed_trackers, open_trackers, tracker_problems
from cohort.integrations.trackers.tracker import Tracker, Trackers, TrackerSettings

__all__ = [
    "TRACKER_NAMES",
    "Tracker",
    "TrackerSettings",
    "Trackers",
    "installed_trackers",
    "open_trackers",
    "tracker_problems",
]
