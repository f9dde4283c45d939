"""What a service for many tenants keeps: a database (SQLite or PostgreSQL) and blobs. Knows neither HTTP nor torch."""
