"""The run that a host has: the public documents that newcomers get, and the keys that sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

if TYPE_CHECKING:
    from coordinator.run.run_files import RunFiles
    from protocol.identity.credential import CertificateAuthority
    from protocol.identity.identity import Verifier


@dataclass(frozen=True, slots=True)
class HostedRun:
    """The run's public documents for a newcomer, and the keys that sign. `dataset` is the canonical JSON of the packed data."""

    run_id: RunId
    signed_manifest: bytes
    dataset: bytes
    max_peers: int
    credential_days: int
    authority: CertificateAuthority
    verifier: Verifier
    peer_id: PeerId
    bootstrap: Callable[[], tuple[str, ...]]


def hosted_run(run: RunFiles, peer_id: PeerId, bootstrap: Callable[[], tuple[str, ...]]) -> HostedRun:
    """The run of a host. `peer_id`: of the host itself; `bootstrap`: the addresses at which its node is reached now."""
    config = run.manifest.config
    return HostedRun(
        run_id=run.manifest.run_id,
        signed_manifest=run.signed_manifest,
        dataset=run.dataset.canonical_bytes(),
        max_peers=config.run.most_peers,
        credential_days=config.admission.credential_days,
        authority=run.authority,
        verifier=Ed25519Verifier(),
        peer_id=peer_id,
        bootstrap=bootstrap,
    )
