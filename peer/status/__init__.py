"""What the peer reports of itself: status file, page, metrics, terminal, trace."""
