"""Core: documents go to the expert that has the lowest loss on them (DiPaCo, 2403.10616, section 2.4), some at a time.

A router knows what documents look like; losses know which expert predicts them best. Every few rounds the losses of a sample are
measured, this rule says whose each document is from then on, and `refit_router` makes a router of it.

Shapes: D documents, X experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from protocol.errors import ConfigError


def reassigned(
    losses_DX: Sequence[Sequence[float]], owners_D: Sequence[int], *, least_documents: int, most_moved: int
) -> tuple[int, ...]:
    """The new owner of each document.

    Documents go to their lowest-loss expert, those that gain most first, until `most_moved` have: an expert whose documents all change
    at once has learned for nothing. No expert falls below `least_documents`; one that has fewer gets those that lose least by it from
    experts that have more. A document stays where nothing is gained; of equal ones the earlier goes first, to the lower number.

    Args:
        losses_DX: nats a byte of each document with each expert.
        owners_D: the expert of each document now.
        least_documents: of each expert, 0 for any number.
        most_moved: documents that go where they gain, in one call.

    Raises:
        ConfigError: numbers that do not fit together, a loss that is not finite, or fewer documents than the experts are to have.
    """
    num_experts = _checked(losses_DX, owners_D, least_documents)
    owners = list(owners_D)
    counts = [owners.count(expert) for expert in range(num_experts)]
    best = [min(enumerate(row), key=lambda pair: (pair[1], pair[0]))[0] for row in losses_DX]
    gains = [row[owner] - row[expert] for row, owner, expert in zip(losses_DX, owners, best, strict=True)]
    left = most_moved
    for document in sorted(range(len(owners)), key=lambda document: (-gains[document], document)):
        owner = owners[document]
        if left and gains[document] > 0 and counts[owner] > least_documents:
            _move(document, best[document], owners, counts)
            left -= 1
    for expert in range(num_experts):
        _fill(expert, losses_DX, owners, counts, least_documents)
    return tuple(owners)


def _fill(
    expert: int, losses_DX: Sequence[Sequence[float]], owners: list[int], counts: list[int], least_documents: int
) -> None:
    """Bring an expert up to its least number, by the documents that lose least."""
    if counts[expert] >= least_documents:
        return
    costs = [
        (row[expert] - row[owner], place) for place, (row, owner) in enumerate(zip(losses_DX, owners, strict=True))
    ]
    for _, document in sorted(costs):
        if counts[expert] >= least_documents:
            return
        if owners[document] != expert and counts[owners[document]] > least_documents:
            _move(document, expert, owners, counts)


def _move(document: int, expert: int, owners: list[int], counts: list[int]) -> None:
    counts[owners[document]] -= 1
    counts[expert] += 1
    owners[document] = expert


def _checked(losses_DX: Sequence[Sequence[float]], owners_D: Sequence[int], least_documents: int) -> int:
    """How many experts there are."""
    num_experts = len(losses_DX[0]) if losses_DX else 0
    if not num_experts or len(owners_D) != len(losses_DX) or any(len(row) != num_experts for row in losses_DX):
        raise ConfigError(
            f"losses of {len(losses_DX)} documents, owners of {len(owners_D)}", "each document's, by every expert"
        )
    if not all(0 <= owner < num_experts for owner in owners_D):
        raise ConfigError("a document of an expert that there is not", f"0 to {num_experts - 1}")
    if not all(math.isfinite(loss) for row in losses_DX for loss in row):
        raise ConfigError("a loss that is not finite", "nats a byte of each document with each expert")
    if len(owners_D) < num_experts * least_documents:
        raise ConfigError(
            f"{len(owners_D)} documents for {num_experts} experts",
            f"at least {num_experts * least_documents}, {least_documents} for each",
        )
    return num_experts
