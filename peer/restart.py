"""What a peer says when it starts again on what it had: where it stands, and what of it was lost. Pure."""

from __future__ import annotations


def restart_sentence(head_index: int, proven_index: int) -> str:
    """One sentence for its owner. `head_index`: the round whose state is whole on this disk; `proven_index`: the newest round of which
    the disk has the certificate.
    """
    if proven_index <= head_index:
        return f"restarted at round {head_index}; nothing was lost but steps that no round had counted"
    return (
        f"restarted at round {head_index}; work since round {head_index} was lost here: what rounds up to {proven_index} "
        "need comes from other peers, if any has it"
    )
