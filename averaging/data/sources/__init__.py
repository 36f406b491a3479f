"""Sources of text: files, JSON lines, parquet, data sets."""
