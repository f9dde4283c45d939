"""Organisations, projects, keys, quotas, usage and the audit log."""
