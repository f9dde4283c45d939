"""Pipeline parallelism: each rank has some layers, and micro-batches of many adapters pass one behind the other."""
