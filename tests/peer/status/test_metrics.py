from __future__ import annotations

from peer.status.metrics import PEER_METRICS, STATES, metrics_text
from peer.status.status import BulkTraffic, ControlTraffic, LastRound, PeerStatus

STATUS = PeerStatus(
    peer="p",
    name="n",
    state="training",
    tokens_trained=7,
    bytes_up=10,
    control_bytes_up=4,
    host_bytes_up=3,
    host_bytes_down=2,
)


def _text(status: PeerStatus) -> str:
    return metrics_text(lambda: status).decode()


def test_every_row_of_the_table_appears_once_a_status_has_its_value() -> None:
    card = {"mfu": 0.4, "card_expected_bytes": 2, "card_used_bytes": 1}
    text = _text(STATUS.model_copy(update={"loss": 2.0, "credential_left_s": 1.0, "host_heard_ago_s": 1.0, **card}))
    for row in PEER_METRICS:
        assert f"# HELP {row.name}" in text


def test_loss_is_absent_before_the_first_step() -> None:
    assert "\npotluck_peer_loss_nats " not in _text(STATUS)


def test_lanes_add_up_to_all_bytes_beside_those_of_the_host() -> None:
    text = _text(STATUS)
    assert 'potluck_peer_sent_bytes_total{lane="control"} 4.0' in text
    assert 'potluck_peer_sent_bytes_total{lane="bulk"} 6.0' in text
    assert 'potluck_peer_sent_bytes_total{lane="host"} 3.0' in text
    assert 'potluck_peer_received_bytes_total{lane="host"} 2.0' in text


def test_bulk_is_told_by_way_channel_unit_and_codec_and_a_round_by_its_bytes() -> None:
    bulk = BulkTraffic(way="direct", channel="exchange", unit="trunk", codec="int8", bytes_up=6, bytes_down=7)
    last = LastRound(index=1, members=("p",), weights={"p": 1.0}, bytes_up=5, bytes_down=4)
    text = _text(STATUS.model_copy(update={"bulk": (bulk,), "last_round": last}))
    labels = '{channel="exchange",codec="int8",unit="trunk",way="direct"}'
    assert f"potluck_peer_bulk_sent_bytes_total{labels} 6.0" in text
    assert f"potluck_peer_bulk_received_bytes_total{labels} 7.0" in text
    assert "potluck_peer_round_sent_bytes 5.0" in text
    assert "potluck_peer_round_received_bytes 4.0" in text


def test_control_messages_are_told_by_channel() -> None:
    control = tuple(ControlTraffic(channel=channel, bytes_up=1, bytes_down=3) for channel in ("round", "directory"))
    text = _text(STATUS.model_copy(update={"control": control}))
    for channel in ("round", "directory"):
        assert f'potluck_peer_control_sent_bytes_total{{channel="{channel}"}} 1.0' in text
        assert f'potluck_peer_control_received_bytes_total{{channel="{channel}"}} 3.0' in text


def test_exactly_one_state_is_one() -> None:
    lines = [line for line in _text(STATUS).splitlines() if line.startswith("potluck_peer_state{")]
    assert len(lines) == len(STATES)
    assert [line for line in lines if line.endswith(" 1.0")] == ['potluck_peer_state{state="training"} 1.0']


def test_names_use_base_units_and_counters_do_not_repeat_total() -> None:
    for row in PEER_METRICS:
        assert row.name.startswith(("potluck_peer_", "potluck_card_"))
        assert not row.name.endswith(("_ms", "_kb", "_total"))


def test_health_membership_and_the_download_are_read_off_the_status() -> None:
    status = STATUS.model_copy(
        update={
            "is_sound": False, "credential_left_s": 60.5, "host_heard_ago_s": 3.0, "is_host_away": True, "bans": 2,
            "session": 9, "ways_in": 4, "caught_up": "replay", "suspected": ("q", "r"), "download_bytes_here": 1,
            "download_bytes_all": 8, "download_donors": 3, "rounds_counted": 6, "audits": 4,
            "disk_free_bytes": 7, "disk_all_bytes": 70, "writes_refused": 5, "generations_damaged": 2,
        }
    )  # fmt: skip
    lines = _text(status).splitlines()
    for line in (
        "potluck_peer_state_sound 0.0",
        "potluck_peer_credential_left_seconds 60.5",
        "potluck_peer_host_heard_ago_seconds 3.0",
        "potluck_peer_host_away 1.0",
        "potluck_peer_bans 2.0",
        "potluck_peer_session 9.0",
        "potluck_peer_ways_in 4.0",
        'potluck_peer_caught_up{way="replay"} 1.0',
        'potluck_peer_caught_up{way="snapshot"} 0.0',
        "potluck_peer_suspected_members 2.0",
        "potluck_peer_download_bytes 1.0",
        "potluck_peer_download_all_bytes 8.0",
        "potluck_peer_download_donors 3.0",
        "potluck_peer_rounds_counted_total 6.0",
        "potluck_peer_audits_total 4.0",
        "potluck_peer_disk_free_bytes 7.0",
        "potluck_peer_disk_all_bytes 70.0",
        "potluck_peer_writes_refused_total 5.0",
        "potluck_peer_generations_damaged_total 2.0",
    ):
        assert line in lines


def test_the_cards_share_and_memory_are_absent_where_they_are_not_known() -> None:
    assert not any(f"\npotluck_peer_{name} " in _text(STATUS) for name in ("mfu_ratio", "card_used_bytes"))
    known = _text(STATUS.model_copy(update={"mfu": 0.41, "card_used_bytes": 7}))
    assert "\npotluck_peer_mfu_ratio 0.41\n" in known
    assert "\npotluck_peer_card_used_bytes 7.0\n" in known
