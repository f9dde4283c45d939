"""A decoder layer on a CPU as one node of autograd, and its attention."""
