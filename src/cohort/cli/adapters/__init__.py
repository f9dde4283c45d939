"""Verbs that use adapters: chat with one, let it answer, measure it on other rows, export and publish it."""
