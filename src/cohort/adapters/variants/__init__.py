"""Variants of LoRA: BD-LoRA, DoRA, VeRA, and factors that begin at parts of the base weight (PiSSA, OLoRA)."""
