"""The API of Thinking Machines' Tinker, for its unmodified client."""
