"""Qwen3: Llama with norms of the queries and keys of each head."""
