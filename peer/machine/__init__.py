"""This computer's devices, memory and memory limits."""
