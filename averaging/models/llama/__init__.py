"""Llama: root-mean-square norms, rotary positions, SwiGLU, grouped queries. Other families are the same decoder with switches."""
