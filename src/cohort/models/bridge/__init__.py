"""A language model of transformers as the frozen backbone, where no native family computes it."""
