"""Verbs of a service for many tenants: it is started, tenants and keys are managed, a task is submitted to it."""
