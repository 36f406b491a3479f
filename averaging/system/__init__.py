"""The operating system under a process: its folders, signals, limits, and the processes that it starts."""
