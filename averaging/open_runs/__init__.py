"""Lists and directories of open runs: reading their cards, and publishing a host's own card there."""
