"""The tables of the ledger, and how an older file gets them."""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 11
"""Version of the file that this release writes. It reads all older ones."""

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE kv (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
    CREATE TABLE invites (
        secret_hash BLOB PRIMARY KEY, uses INTEGER NOT NULL, max_uses INTEGER NOT NULL,
        created_unix_s INTEGER NOT NULL, expires_unix_s INTEGER NOT NULL) STRICT;
    CREATE TABLE peers (
        peer TEXT PRIMARY KEY, public_key BLOB NOT NULL, admitted_unix_s INTEGER NOT NULL,
        is_banned INTEGER NOT NULL DEFAULT 0, ban_reason TEXT NOT NULL DEFAULT '') STRICT;
    CREATE TABLE credentials (
        serial INTEGER PRIMARY KEY AUTOINCREMENT, peer TEXT NOT NULL REFERENCES peers(peer),
        issued_unix_s INTEGER NOT NULL, certificate BLOB NOT NULL) STRICT;
    CREATE TABLE commits (
        commit_id BLOB PRIMARY KEY, unit TEXT NOT NULL, parent BLOB NOT NULL, round_index INTEGER NOT NULL,
        certificate BLOB NOT NULL, seen_unix_s INTEGER NOT NULL) STRICT;
    CREATE INDEX commits_by_parent ON commits(unit, parent);
    CREATE TABLE loss_points (
        kind TEXT NOT NULL, round_index INTEGER NOT NULL, tokens INTEGER NOT NULL, nats REAL NOT NULL,
        peer TEXT NOT NULL, PRIMARY KEY (kind, tokens, peer)) STRICT;
    CREATE TABLE checkpoints (
        commit_id BLOB PRIMARY KEY, unit TEXT NOT NULL, round_index INTEGER NOT NULL, total_tokens INTEGER NOT NULL,
        state_root BLOB NOT NULL, path TEXT NOT NULL, written_unix_s INTEGER NOT NULL) STRICT;
    """,
    """
    CREATE TABLE revocations (
        number INTEGER PRIMARY KEY, peer TEXT NOT NULL REFERENCES peers(peer), entry BLOB NOT NULL UNIQUE) STRICT;
    """,
    "CREATE TABLE checksums (checksum BLOB PRIMARY KEY) STRICT, WITHOUT ROWID",
    """
    CREATE TABLE events (
        number INTEGER PRIMARY KEY, unix_s INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
        peer TEXT NOT NULL) STRICT;
    CREATE TABLE heard (peer TEXT PRIMARY KEY, unix_s INTEGER NOT NULL, state TEXT NOT NULL) STRICT;
    CREATE TABLE credits (peer TEXT PRIMARY KEY, tokens INTEGER NOT NULL, rounds INTEGER NOT NULL) STRICT;
    """,
    "CREATE TABLE chosen_names (peer TEXT PRIMARY KEY, nickname TEXT NOT NULL, team TEXT NOT NULL) STRICT",
    """
    CREATE TABLE scores (
        task TEXT NOT NULL, part INTEGER NOT NULL, round_index INTEGER NOT NULL, commit_id BLOB NOT NULL,
        total_tokens INTEGER NOT NULL, peer TEXT NOT NULL, envelope BLOB NOT NULL,
        PRIMARY KEY (task, part, commit_id)) STRICT;
    """,
    """
    CREATE TABLE milestones (
        unit TEXT NOT NULL, round_index INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (unit, round_index)) STRICT;
    CREATE TABLE history (
        unit TEXT NOT NULL, first_index INTEGER NOT NULL, last_index INTEGER NOT NULL, rounds BLOB NOT NULL,
        file TEXT NOT NULL, sha256 BLOB NOT NULL, PRIMARY KEY (unit, first_index)) STRICT;
    """,
    """
    CREATE TABLE juniors (
        peer TEXT PRIMARY KEY REFERENCES peers(peer), standing INTEGER NOT NULL, prefix TEXT NOT NULL,
        came_unix_s INTEGER NOT NULL, ends_unix_s INTEGER NOT NULL, tokens_then INTEGER NOT NULL) STRICT;
    CREATE TABLE work (
        peer TEXT NOT NULL, day INTEGER NOT NULL, credited_tokens INTEGER NOT NULL, brought_tokens INTEGER NOT NULL,
        PRIMARY KEY (peer, day)) STRICT;
    """,
    """
    CREATE TABLE verdicts (
        auditor TEXT NOT NULL, contributor TEXT NOT NULL, commit_id BLOB NOT NULL, gap_ppm INTEGER NOT NULL,
        length_permille INTEGER NOT NULL, unix_s INTEGER NOT NULL, PRIMARY KEY (auditor, contributor, commit_id)) STRICT;
    """,
    "ALTER TABLE loss_points ADD COLUMN voices INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE verdicts ADD COLUMN is_untold INTEGER NOT NULL DEFAULT 0",
)
"""One script for each version, run in order. A script that was released never changes: its definitions have checksums."""
