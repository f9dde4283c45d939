"""OpenAI's files, fine-tuning jobs and models."""
