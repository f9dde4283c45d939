"""Tensor parallelism: each rank has a shard of every linear; serving and training share the layer."""
