"""Pages for the administrators of a service: tenants, keys, quotas, usage."""
