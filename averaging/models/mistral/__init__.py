"""Mistral: Llama with a sliding window."""
