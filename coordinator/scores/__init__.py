"""Scores of committed models as peers sign them: judged, kept in the ledger, added up and shown."""
