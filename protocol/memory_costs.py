"""Memory that Potluck's processes take for each value of a model, and without any. Everything that promises memory uses these.

Measured: `python -m tests.benchmarks.memory` has a row for each, and one for what a dry run promises over what was taken.
"""

from __future__ import annotations

from typing import Final

PEER_BASE_BYTES: Final = 3 << 28
"""A daemon and its training process with torch, p2pd, and the activations of a small model."""

DAEMON_BYTES: Final = 10
"""Private memory of a daemon at the peak of a round, a value: the anchor (4), its contribution, those of others and the results (3
where a value takes a byte), a contribution of an earlier round, and pieces between two uses. Row "daemon, peak of a round:
anonymous".
"""

MAPPING_BYTES: Final = 4
"""Memory that a daemon and its training process share, a value: the snapshot, which becomes the shift, or values that are evaluated in
its place. Row "training process, in rounds: mapping".
"""

TRAINING_BYTES: Final = 19
"""Private memory of training on a CPU, a value: parameters, gradients and two moments of AdamW (4 each), and temporaries of a step. Of
a card most of it is the card's. Row "training process, in rounds: anonymous".
"""

PEER_BYTES: Final = DAEMON_BYTES + MAPPING_BYTES + TRAINING_BYTES
"""A whole peer, a value. Row "a peer's processes together"."""

MOMENTUM_BYTES: Final = 4
"""Of a peer and a host, a value, where the outer step keeps a momentum beside the anchor."""

FRAGMENTS_BYTES: Final = 4
"""Of a peer in a run of fragments, a value: snapshots of several fragments at a time beside values that are evaluated. Row "int8 in 4
fragments".
"""

FEEDBACK_BYTES: Final = 10
"""With error feedback, a value: the residual and the pending one (averaging/arithmetic/error_feedback.py), and parts that are being
written to disk. Row "feedback more than without".
"""

SCORES_BYTES: Final = 8
"""Of a peer that measures a task, a value, while it does: its copy of the committed parameters (4), and a place in the shared memory
beside the snapshot of a slow round (4).
"""

AUDIT_BYTES: Final = 40
"""Of a member that does others' steps again, a value, while it does: two beginnings of rounds and the state of that work, each with
parameters and two moments (12), and the delta (4). It audits nothing where so much is not free (peer/audits/audit_turns.py).
"""

STAGE_BASE_BYTES: Final = 1 << 30
"""As `PEER_BASE_BYTES`, for a stage with the activations of its lanes."""

STAGE_BYTES: Final = 40
"""Of a peer of a run of stages, a value of its stage: parameters, gradients and moments (16), three vectors shared with the daemon
(12), its own state (8), and some reserve.
"""

HOST_BASE_BYTES: Final = 23 << 24
"""One Python process with torch, p2pd, and the pieces of text that are packed."""

HOST_BYTES: Final = 6
"""Of a host, a value: an anchor (4), which it fetches, writes as a checkpoint and verifies a part at a time, a result of one byte a
value, and some margin. Rows "host, writing a checkpoint: resident" and those of `--large`.
"""

KEPT_UNIT_BYTES: Final = 10
"""Of a host that renews its copy of a unit, a value of the unit: its state (8), which moves in its place or is replaced, and some
margin. Units come one after another (coordinator/experts/unit_keeper.py).
"""
