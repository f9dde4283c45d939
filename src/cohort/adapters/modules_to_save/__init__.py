"""``modules_to_save``: embeddings and loss heads that a trial trains a full copy of, next to its LoRA factors."""
