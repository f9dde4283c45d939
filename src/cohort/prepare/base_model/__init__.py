"""The base model of a task: what it computes, in which numerics and precision, where it is placed, and loading it."""
