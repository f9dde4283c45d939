"""What users take away from a run: adapter directories, exports, generated text."""
