"""Pushes the newest checkpoint and its export to a folder or bucket of the host, verified after the upload."""
