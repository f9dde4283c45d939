"""States of trials that the ranks of a group keep in parts, each its own."""
