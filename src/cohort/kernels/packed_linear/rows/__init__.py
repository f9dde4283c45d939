"""The LoRA terms of streams with few rows of many adapters: decoding."""
