"""Lists and directories of open runs: asking one for cards, and bringing it one's own."""
