"""The table of a daemon's metrics, and the text that Prometheus reads."""
