"""Llama: root-mean-square norms, rotary positions, SwiGLU, grouped queries."""
