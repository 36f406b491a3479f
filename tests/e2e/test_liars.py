"""One admitted peer lies in every way that could win it the run: the honest refuse each lie by name, and their rounds go on.

The attacks are those of tests/simulation/test_record_attacks.py, here with real processes. The liar runs the code of a release,
changed by lying_peer.py. A file tells it which lie to tell, and the next one comes when the last one was refused.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import trio

from averaging.network.seams.offload import ThreadOffload
from averaging.state.log_entries import LoggedRounds
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.joining import open_start_record
from peer.membership.saved_membership import last_run_folder, load_membership
from protocol.identity.names import peer_name
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.messages.wire import decode_certificate
from protocol.run.manifest import open_manifest
from protocol.tensors.model_config import WHOLE_MODEL
from tests.e2e.lying_peer import (
    ALONE,
    CREDITS,
    DELTA,
    FALSE_COUNTS,
    ROSTER,
    STRANGERS,
    TOKENS_OF_A_LIAR,
    WITHHELD,
    changed_record,
)
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, Running, running_potluck
from tests.e2e.run_file import run_toml, write_texts
from tests.forked import Forked

HONEST = ("a", "b", "c")
LIAR = "liar"
ROUNDS_AFTER_A_LIE = 1
SLOWDOWN = ("--slowdown", "20")
"""All processes share few cores, and training is not what counts here."""

RUN_TOML = run_toml(
    "liars",
    1_000_000_000,
    run={"min_members": len(HONEST) + 1},
    data={"glob": "texts/*.txt"},
    round={
        "mode": "blocking",
        "target_tokens": 1024,
        "longest_interval_s": 6.0,
        "robust": "clip-agree",
        "weight_cap": 5,
    },
    checkpoint={"every_rounds": 1000},
)


class Disagreed(TypedDict):
    """A member whose work a round leaves out, as the host tells it."""

    peer: str
    share: float


class Round(TypedDict):
    """A round as the host tells it, as far as it is looked at here."""

    disagreed: list[Disagreed]


@dataclass(frozen=True)
class Scene:
    """A host, three honest peers and a liar; `asked` is the file that the liar reads."""

    folder: Path
    host: Running
    peers: Mapping[str, Running]
    asked: Path

    @property
    def liar(self) -> str:
        """A pattern of its name, or of its letters, in the reasons of others' rounds."""
        peer = str(self.status(LIAR)["peer"])
        return f"(?:{peer_name(PeerId(peer))}|{peer[-6:]})"

    def status(self, name: str) -> dict[str, object]:
        """The status of a peer; empty while it does not say."""
        url = self.peers[name].wait_for(r"status page: (http://\S+?)/?\s") + "/status.json"
        with suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=5) as reply:
            found: dict[str, object] = json.loads(reply.read())
            return found
        return {}

    def index(self, name: str) -> int:
        """The round at which a peer stands; 0 while it does not say."""
        return int(str(self.status(name).get("index", 0)))

    def tell(self, kind: str, refused: str, *by: str) -> None:
        """Let the liar tell a lie until these peers, or the first of all honest ones, refused it in such words. Then it is honest, and
        the rounds of the others go on.
        """
        seen = {name: self.peers[name].count(refused) for name in HONEST}
        self.asked.write_text(kind, encoding="utf8")
        for name in by:
            self.peers[name].wait_for(refused, seen[name] + 1)
        while not any(self.peers[name].count(refused) > seen[name] for name in HONEST):
            self.wait_rounds(1)
        self.asked.write_text("", encoding="utf8")
        self.wait_rounds(ROUNDS_AFTER_A_LIE)

    def tell_deltas(self) -> None:
        """Let the liar send false deltas until the host names it for one that is left out of most of a round. Most of what the honest
        did counts there: a slow one with few steps may disagree, too.
        """
        liar = str(self.status(LIAR)["peer"])
        self.asked.write_text(DELTA, encoding="utf8")
        while not (caught := [shares for shares in self._left_out() if shares.get(liar, 0.0) > 0.5]):
            self.wait_rounds(1)
        for shares in caught:
            assert sum(shares.values()) - shares[liar] < 0.5 * len(HONEST), shares
        self.asked.write_text("", encoding="utf8")
        self.wait_rounds(ROUNDS_AFTER_A_LIE)

    def _left_out(self) -> list[dict[str, float]]:
        """The share of each peer's work that the newest rounds left out, as the host tells it; the usual 0 is not told."""
        url = self.host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"
        with urllib.request.urlopen(url, timeout=5) as reply:
            rounds: list[Round] = json.loads(reply.read())["rounds"]
        return [{each["peer"]: each["share"] for each in row["disagreed"]} for row in rounds]

    def wait_rounds(self, number: int) -> None:
        """Until every honest peer has committed so many more rounds."""
        begin = max(self.index(name) for name in HONEST)
        for name in HONEST:
            self.peers[name].wait_for(rf"round {begin + number} committed: \d+ counted")


@contextmanager
def _scene(folder: Path, forked: Forked) -> Iterator[Scene]:
    run_file, asked = folder / "run.toml", folder / "asked"
    run_file.write_text(RUN_TOML)
    write_texts(folder)
    lying = f"from pathlib import Path; from tests.e2e.lying_peer import lie; lie(Path({str(asked)!r}))"
    with ExitStack() as stack:
        hosting = ("host", str(run_file), "--state-dir", str(folder / "host"), *LOOPBACK)
        host = stack.enter_context(running_potluck(folder, "host process", *hosting, forked=forked))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        peers: dict[str, Running] = {}
        for name in (*HONEST, LIAR):
            joining = ("join", invite, "--state-dir", str(folder / name), *PEER_FLAGS, *SLOWDOWN)
            before = lying if name == LIAR else ""
            peers[name] = stack.enter_context(
                running_potluck(folder, f"peer {name}", *joining, forked=forked, before=before)
            )
        yield Scene(folder, host, peers, asked)
        assert all("Traceback" not in one.said() for one in (host, *peers.values()))


def test_each_lie_of_an_admitted_peer_is_refused_by_name_and_the_rounds_of_the_honest_go_on(
    tmp_path: Path, forked: Forked
) -> None:
    with _scene(tmp_path, forked) as scene:
        liar = scene.liar
        scene.wait_rounds(1)
        scene.tell(ROSTER, rf"refused a record of {liar}: \S+ contributed and is not to vote next", *HONEST)
        scene.tell(CREDITS, rf"refused a record of {liar}: {liar} did not sign .* {TOKENS_OF_A_LIAR} tokens", *HONEST)
        scene.tell(ALONE, rf"{liar} sent commits after round 0 that no quorum signed: not followed", *HONEST)
        scene.tell(STRANGERS, rf"dropped a certificate of {liar}: \S+ was not admitted to the run", *HONEST)
        scene.tell_deltas()
        scene.tell(FALSE_COUNTS, rf"dropped a result of {liar}: a result that counts what \S+ did not sign")
        scene.tell(WITHHELD, rf"reducer {liar} announced a result that did not come here; its slice is given to others")
        num_rounds = min(scene.index(name) for name in HONEST)
        for peer in scene.peers.values():
            peer.interrupt()
        for name in HONEST:
            assert scene.peers[name].exit_code() == 0, scene.peers[name].said()
    _check_states(tmp_path, num_rounds)


def _check_states(folder: Path, num_rounds: int) -> None:
    """All honest peers have one lineage of at least so many rounds, and no commit of it says what the liar wanted."""
    lineages = [_lineage(folder / name) for name in HONEST]
    longest = max(lineages, key=len)
    for lineage in lineages:
        assert len(lineage) > num_rounds
        assert [link.commit for link in lineage] == [link.commit for link in longest[: len(lineage)]]
    everybody = set(longest[0].roster)
    assert set(longest[num_rounds].roster) == everybody, "not all vote any more, or somebody else does"
    for parent, link in pairwise(longest):
        record = link.record
        assert record is not None
        assert not record.lone
        assert everybody.issuperset(link.roster)
        assert all(entry.tokens < TOKENS_OF_A_LIAR for entry in record.contributors)
        assert all(changed_record(kind, record, parent) != record for kind in (ROSTER, CREDITS))


def _lineage(state_dir: Path) -> list[ChainLink]:
    """The start of the run and the commits in a peer's log, each verified on the one before."""
    run_folder = last_run_folder(state_dir)
    saved = load_membership(run_folder) if run_folder is not None else None
    assert run_folder is not None
    assert saved is not None
    verifier = Ed25519Verifier(saved.ca_certificate_der)
    manifest = open_manifest(saved.manifest, verifier=verifier)
    logged = trio.run(_logged, run_folder / WHOLE_MODEL)
    assert logged.displaced == [], "it followed another lineage for a while"
    links = [genesis_link(open_start_record(saved.start_record, manifest), WHOLE_MODEL)]
    for _, raw in logged.certificates:
        links.append(verify_certificate(decode_certificate(raw), links[-1], verifier=verifier, run_id=manifest.run_id))
    return links


async def _logged(folder: Path) -> LoggedRounds:
    return await UnitLog(FileStorage(folder, ThreadOffload())).load()
