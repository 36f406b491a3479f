"""The run's folder: files, texts, routers."""
