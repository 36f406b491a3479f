"""The newest round of a peer as a file: a trace for viewers, or a picture."""
