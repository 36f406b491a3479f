"""The training process: its loop, its channel to the daemon and its shared parameters."""
