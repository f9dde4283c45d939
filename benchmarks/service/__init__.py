"""What a service does for many tenants."""
