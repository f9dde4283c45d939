"""Pure decisions about a pipeline: where the model is cut, in which order stages work, what passes them together."""
