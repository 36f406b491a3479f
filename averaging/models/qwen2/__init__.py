"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values."""
