"""Cohort's own API: whole tasks, their trials, plans and reports."""
