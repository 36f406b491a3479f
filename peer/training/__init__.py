"""The process that trains: its loop, its channel to the daemon, its shared parameters."""
