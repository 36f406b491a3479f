"""What this computer is: devices, memory and its limits."""
