"""Arguments of the command line: what verbs share, overrides of the task file, errors about them."""
