"""Small passes recorded as CUDA graphs, and which of them are."""
