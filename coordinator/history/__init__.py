"""The long past of a run: milestones that the host signs, and an archive of certificates that the ledger needs no more."""
