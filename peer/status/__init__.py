"""The peer's reports: status file, page, metrics, terminal and trace."""
