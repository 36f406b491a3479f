"""What of the model a peer holds where nobody holds all: experts, or a stage."""

from __future__ import annotations

from pathlib import Path

from averaging.network.seams.interfaces import Offload
from peer.holdings.held_experts import OwnExperts
from peer.holdings.held_stage import OwnStage
from peer.settings.config import PeerConfig
from protocol.run.manifest import RunConfig

OwnParts = OwnExperts | OwnStage


def own_parts(own: PeerConfig, config: RunConfig, folder: Path, offload: Offload) -> OwnParts:
    """Of a run of whichever kind; nothing where everybody holds the whole model.

    Raises:
        ConfigError: its owner named experts that the run has not, or too many.
        MachineError: it has no room for any stage.
    """
    stages = config.stages
    return (
        OwnExperts(own, config, folder, offload) if stages is None else OwnStage(own, config, stages, folder, offload)
    )
