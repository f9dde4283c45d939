"""Devices of this machine, what they can do, and what was measured on them."""
