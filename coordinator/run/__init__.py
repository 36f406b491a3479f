"""The run's folder: files, routers, and the checkpoints that commands name."""
