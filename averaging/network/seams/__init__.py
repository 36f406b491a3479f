"""The interfaces that services use, and their clocks, frames and limits."""
