"""The product for Hopper GPUs with the LoRA term in its main loop."""
