from __future__ import annotations

from peer.demo.observation import HostStatus, PeerReport
from peer.status.status import PeerStatus


def test_host_status_reads_what_is_documented_and_ignores_the_rest() -> None:
    text = """{"run": "demo", "phase": "training", "reason": "r", "head": "aa", "index": 1, "total_tokens": 5,
    "target_total_tokens": 9, "eta_s": 3.5, "later": 1, "peers": [{"peer": "p", "name": "n", "last_seen_s": 1.0}],
    "rounds": [{"index": 1, "commit": "aa", "members": ["p"], "weights": {"p": 1.0}, "coverage": 1.0,
    "omitted": [{"peer": "q", "reason": "silent"}], "unix_s": 7.0}],
    "heldout": [{"index": 0, "tokens": 0, "nats": 5.6}],
    "train_loss": [{"tokens": 5, "nats": 5.0}], "checkpoints": [], "yardsticks": null}"""
    status = HostStatus.model_validate_json(text)
    assert status.rounds[0].omitted[0].reason == "silent"
    assert status.heldout[0].nats == 5.6


def test_peer_report_reads_what_a_peer_writes() -> None:
    status = PeerStatus(peer="p", name="n", state_root="ab", first_counted_unix_s=12.0)
    report = PeerReport.model_validate_json(status.model_dump_json())
    assert (report.peer, report.state_root, report.first_counted_unix_s) == ("p", "ab", 12.0)
