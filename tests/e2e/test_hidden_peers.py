"""A run of three volunteers to whom nobody can connect, with real processes: ten rounds count all three, and all end with one state.

As root, one of them is in a network namespace behind a firewall, and the others are in namespaces where they do not listen. Elsewhere
all three are on loopback and do not listen: they cannot be connected to there either.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from peer.status.status import last_status
from tests.benchmarks.places import Place, open_places
from tests.e2e.processes import ROOT, running_potluck
from tests.e2e.run_file import run_toml
from tests.forked import Forked

NUM_ROUNDS = 10
RUN_TOML = run_toml(
    "hidden",
    22_000,
    run={"min_members": 3},
    model={"vocab_size": 260},
    data={"tokenizer": "bytes", "heldout_every": 4},
    round={"target_tokens": 384},
)
ENTER = "import ctypes, os; assert ctypes.CDLL(None).setns(os.open('/run/netns/{}', os.O_RDONLY), 0x40000000) == 0"
FIREWALL = (
    ("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
    ("-A", "INPUT", "!", "-i", "lo", "-j", "DROP"),
)


def _close(place: Place) -> bool:
    """Put a firewall around a place, which lets nothing in that was not asked for. Whether that can be done here."""
    if not place.namespace or not shutil.which("iptables"):
        return False
    inside = ["ip", "netns", "exec", place.namespace, "iptables", "-w"]
    return all(subprocess.run([*inside, *rule], capture_output=True, timeout=20).returncode == 0 for rule in FIREWALL)


def test_three_volunteers_to_whom_nobody_can_connect_count_in_ten_rounds_and_end_with_one_state(
    tmp_path: Path, forked: Forked
) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(f"{number} " + (ROOT / "README.md").read_text(encoding="utf8"))
    with open_places(3) as places, ExitStack() as stack:
        address = places.host_address
        hosting = ["host", str(tmp_path / "run.toml"), "--state-dir", str(tmp_path / "host"), "--listen-host", address]
        host = stack.enter_context(running_potluck(tmp_path, "host process", *hosting, forked=forked))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        peers = []
        for number, place in enumerate(places.peers):
            is_closed = number == 0 and _close(place)
            joining = ["join", invite, "--state-dir", str(tmp_path / f"{number}"), "--device", "cpu"]
            joining += ["--num-threads", "1", "--slowdown", "20", *([] if is_closed else ["--no-listen"])]
            before = ENTER.format(place.namespace) if place.namespace else ""
            peers.append(
                stack.enter_context(running_potluck(tmp_path, f"peer {number}", *joining, forked=forked, before=before))
            )
        for peer in peers:
            assert peer.exit_code() == 0, peer.said()
        said = host.said() + "".join(peer.said() for peer in peers)
    assert "Traceback" not in said
    ends = [last_status(tmp_path / f"{number}") for number in range(3)]
    states = {(end.index, end.state_root, end.is_outbound_only) for end in ends if end is not None}
    assert [(index >= NUM_ROUNDS, is_hidden) for index, _, is_hidden in states] == [(True, True)], states
    assert "a helper here reduces for them" in said
    # whoever had nothing trained yet when one of the first rounds began is in all later ones
    assert all(end is not None and end.rounds_counted >= NUM_ROUNDS for end in ends), said
