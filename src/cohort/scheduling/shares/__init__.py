"""Weighted fair shares of GPU time by tenant: whose pass is next on a resident base, whose job on a free worker."""
