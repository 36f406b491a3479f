"""Finding open runs to join."""
