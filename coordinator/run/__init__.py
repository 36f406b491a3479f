"""The run's folder: files, routers."""
