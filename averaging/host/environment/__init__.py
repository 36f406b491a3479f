"""What the machine gives a process: folders, cores, signals, and a Python of its own for helpers."""
