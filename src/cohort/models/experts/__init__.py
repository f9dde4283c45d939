"""Blocks of experts: every token passes a few of many MLPs, whose weights are stacked in one parameter each."""
