"""What users take away from a run: adapter directories, exports, answers, conversations, values on other rows."""
