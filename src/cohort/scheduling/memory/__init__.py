"""The peak memory of a pass: fitted to measured passes."""
