"""A member spoils the model of a run with a plain mean: the host holds the run, goes back, and all go on from the last good commit."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.unit_log_view import followed
from averaging.state.log_entries import LoggedRounds
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.joining import open_start_record
from peer.membership.saved_membership import last_run_folder, load_membership
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.messages.messages import Certificate
from protocol.run.manifest import open_manifest
from protocol.tensors.model_config import WHOLE_MODEL
from tests.e2e.lying_peer import DELTA
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, Running, running_potluck
from tests.e2e.run_file import run_toml, write_texts
from tests.e2e.test_liars import HONEST, LIAR, SLOWDOWN
from tests.forked import Forked

PEERS: Final = (*HONEST[:2], LIAR)
NUM_GOOD: Final = 8
ROUNDS_AFTER: Final = 2

RUN_TOML: Final = run_toml(
    "gate",
    1_000_000_000,
    run={"min_members": len(PEERS)},
    data={"glob": "texts/*.txt"},
    round={"mode": "blocking", "target_tokens": 192, "longest_interval_s": 6.0, "loss_gate": True, "weight_cap": 5},
    checkpoint={"every_rounds": 1000},
)

IMPATIENT: Final = "from coordinator.audits import loss_gate_core; loss_gate_core.STILL_S = 3.0"
"""The host's process waits less for the round under way: rounds are short here."""


def test_a_spoiled_run_is_held_and_taken_back_and_every_peer_goes_on_from_the_good_commit(
    tmp_path: Path, forked: Forked
) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    write_texts(tmp_path)
    asked = tmp_path / "asked"
    lying = f"from pathlib import Path; from tests.e2e.lying_peer import lie; lie(Path({str(asked)!r}))"
    with ExitStack() as stack:
        hosting = ("host", str(tmp_path / "run.toml"), "--state-dir", str(tmp_path / "host"), *LOOPBACK)
        host = stack.enter_context(running_potluck(tmp_path, "host", *hosting, forked=forked, before=IMPATIENT))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        peers: dict[str, Running] = {}
        for name in PEERS:
            joining = ("join", invite, "--state-dir", str(tmp_path / name), *PEER_FLAGS, *SLOWDOWN)
            before = lying if name == LIAR else ""
            peers[name] = stack.enter_context(
                running_potluck(tmp_path, f"peer {name}", *joining, forked=forked, before=before)
            )
        peers["a"].wait_for(rf"round {NUM_GOOD} committed: \d+ counted")
        asked.write_text(DELTA, encoding="utf8")
        host.wait_for(r"held-out loss rose from .*: no round is opened")
        asked.write_text("", encoding="utf8")
        good = int(host.wait_for(r"rounds are taken back, and the run goes on from round (\d+)"))
        _wait_after(peers, good)
        reason = _newest_rounds(host)
        assert all(row["index"] != good + 1 or row["members"] == [] for row in reason)
        for peer in peers.values():
            peer.interrupt()
        for name, peer in peers.items():
            assert peer.exit_code() == 0, peer.said()
            assert "the host holds the run: held-out loss rose" in peer.said(), name
            assert "starting from its last good commit" in peer.said(), name
        assert all("Traceback" not in one.said() for one in (host, *peers.values()))
    lineages = [_lineage(tmp_path / name) for name in PEERS]
    longest = max(lineages, key=len)
    for lineage in lineages:
        assert [link.commit for link in lineage] == [link.commit for link in longest[: len(lineage)]]
        assert [link.index for link in lineage if link.rewind] == [good + 1]
        assert not any(link.is_lone for link in lineage)


def _wait_after(peers: Mapping[str, Running], good: int) -> None:
    """Until every peer has committed rounds after the rewind."""
    for peer in peers.values():
        peer.wait_for("starting from its last good commit")
        seen = peer.count(r"round \d+ committed: \d+ counted")
        peer.wait_for(r"round \d+ committed: \d+ counted", seen + ROUNDS_AFTER)


def _newest_rounds(host: Running) -> list[dict[str, object]]:
    url = host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"
    with urllib.request.urlopen(url, timeout=5) as reply:
        found: list[dict[str, object]] = json.loads(reply.read())["rounds"]
        return found


def _lineage(state_dir: Path) -> list[ChainLink]:
    """The lineage on which a peer's log stands, each commit verified on the one before."""
    run_folder = last_run_folder(state_dir)
    saved = load_membership(run_folder) if run_folder is not None else None
    assert run_folder is not None
    assert saved is not None
    verifier = Ed25519Verifier(saved.ca_certificate_der)
    manifest = open_manifest(saved.manifest, verifier=verifier)
    first = genesis_link(open_start_record(saved.start_record, manifest), WHOLE_MODEL)

    def verified(certificate: Certificate, parent: ChainLink) -> ChainLink:
        return verify_certificate(certificate, parent, verifier=verifier, run_id=manifest.run_id)

    line, _ = followed(first, trio.run(_logged, run_folder / WHOLE_MODEL), verified)
    for parent, link, certificate in zip(line.links, line.links[1:], line.certificates, strict=False):
        assert verified(certificate, parent) == link
    return line.links


async def _logged(folder: Path) -> LoggedRounds:
    return await UnitLog(FileStorage(folder, ThreadOffload())).load()
