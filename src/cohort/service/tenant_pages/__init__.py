"""Pages for the tenants of a service: each key sees the runs of its own project."""
