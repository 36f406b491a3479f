"""Where text comes from: files, JSON lines, parquet, data sets."""
