"""Experiment trackers that a run may report to, beside its own report."""

from cohort.integrations.trackers.opening import TRACKER_NAMES, open_trackers
from cohort.integrations.trackers.tracker import Tracker, Trackers, TrackerSettings

__all__ = ["TRACKER_NAMES", "Tracker", "TrackerSettings", "Trackers", "open_trackers"]
