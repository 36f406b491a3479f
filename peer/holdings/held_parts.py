"""Which parts of the model a peer holds if no peer holds all of it: experts, or a stage."""

from __future__ import annotations

from pathlib import Path

from averaging.network.seams.interfaces import Offload
from peer.holdings.held_experts import OwnExperts
from peer.holdings.held_stage import OwnStage
from peer.settings.config import PeerConfig
from protocol.run.manifest import RunConfig

OwnParts = OwnExperts | OwnStage


def own_parts(own: PeerConfig, config: RunConfig, folder: Path, offload: Offload) -> OwnParts:
    """The parts to hold in any kind of run; no parts if every peer holds the whole model.

    Raises:
        ConfigError: the owner named experts that the run does not have, or too many.
        MachineError: no stage fits in its memory.
    """
    stages = config.stages
    return (
        OwnExperts(own, config, folder, offload) if stages is None else OwnStage(own, config, stages, folder, offload)
    )
