"""The round machine: one pure step for each event. `RULES.md` has its rules."""
