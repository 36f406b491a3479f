from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import pytest

from peer.membership.saved_membership import (
    FILE_NAME,
    KEPT_PEERS,
    SavedMembership,
    host_heard_s,
    load_membership,
    remember_credential,
    remember_host_heard,
    remember_peers,
    remember_start,
    save_membership,
    take_session,
)
from protocol.errors import StorageError


def _membership() -> SavedMembership:
    return SavedMembership.model_construct(
        addresses=("127.0.0.1:1",),
        ca_certificate_der=b"\xffca",
        tls_key_pem=b"key",
        credential=b"credential",
        manifest=b"manifest",
        dataset=b"dataset",
        start_record=b"",
        coordinator_peer_id="peer",
        bootstrap=(),
    )


def test_a_membership_comes_back_byte_for_byte_from_a_private_file(tmp_path: Path) -> None:
    save_membership(tmp_path / "run", _membership())
    loaded = load_membership(tmp_path / "run")
    assert loaded is not None
    assert loaded.ca_certificate_der == b"\xffca"
    assert loaded.model_dump() == _membership().model_dump()
    assert (tmp_path / "run" / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_no_file_is_no_membership_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert load_membership(tmp_path) is None
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(StorageError, match="invite again"):
        load_membership(tmp_path)


def test_every_process_life_has_a_higher_session(tmp_path: Path) -> None:
    lives = [take_session(tmp_path / "peer", now_s) for now_s in (1e9, 1e9, 2e9, 1e9)]
    assert lives == [1_000_000_000, 1_000_000_001, 2_000_000_000, 2_000_000_001]
    (tmp_path / "peer" / "session").write_text("not a number")
    with pytest.raises(StorageError):
        take_session(tmp_path / "peer", 1e9)


def test_a_copied_folder_that_is_started_later_has_a_higher_session_than_the_one_it_was_copied_from(
    tmp_path: Path,
) -> None:
    take_session(tmp_path / "one", 1e9)
    copytree(tmp_path / "one", tmp_path / "other")
    older = [take_session(tmp_path / "one", 1e9 + second) for second in (10, 20, 30)][-1]
    assert take_session(tmp_path / "other", 1e9 + 40) > older


def test_when_the_host_was_heard_is_kept_and_a_damaged_word_is_none(tmp_path: Path) -> None:
    assert host_heard_s(tmp_path) == 0.0
    remember_host_heard(tmp_path, 1_700_000_000.75)
    assert host_heard_s(tmp_path) == 1_700_000_000.0
    (tmp_path / "host_heard").write_text("yesterday")
    assert host_heard_s(tmp_path) == 0.0
    with pytest.raises(StorageError, match="writable folder"):
        remember_host_heard(tmp_path / "host_heard", 1.0)


def _loaded(folder: Path) -> SavedMembership:
    loaded = load_membership(folder)
    assert loaded is not None
    return loaded


def test_what_is_remembered_later_changes_nothing_else(tmp_path: Path) -> None:
    save_membership(tmp_path, _membership())
    remember_start(tmp_path, b"start\xff")
    remember_peers(tmp_path, ("/ip4/192.0.2.1/tcp/1/p2p/x",))
    remember_credential(tmp_path, b"newer\xff", b"newer key")
    expected = _membership().model_copy(
        update={
            "start_record": b"start\xff",
            "peer_addresses": ("/ip4/192.0.2.1/tcp/1/p2p/x",),
            "credential": b"newer\xff",
            "tls_key_pem": b"newer key",
        }
    )
    assert _loaded(tmp_path).model_dump() == expected.model_dump()


def _address(peer: str, port: int = 1) -> str:
    return f"/ip4/192.0.2.1/tcp/{port}/p2p/{peer}"


def test_the_file_is_written_only_when_other_peers_are_listed(tmp_path: Path) -> None:
    save_membership(tmp_path, _membership())
    remember_peers(tmp_path, (_address("a"), _address("b")))
    written = (tmp_path / FILE_NAME).stat().st_ino
    remember_peers(tmp_path, ())
    remember_peers(tmp_path, (_address("a"), _address("b")))
    assert _loaded(tmp_path).peer_addresses == (_address("a"), _address("b"))
    assert (tmp_path / FILE_NAME).stat().st_ino == written


def test_peers_that_are_listed_no_more_stay_remembered_behind_the_others_while_there_is_room(tmp_path: Path) -> None:
    save_membership(tmp_path, _membership())
    remember_peers(tmp_path, (_address("a"), _address("b", 1), _address("b", 2)))
    remember_peers(tmp_path, (_address("b", 3),))
    assert _loaded(tmp_path).peer_addresses == (_address("b", 3), _address("a"))
    newer = tuple(_address(f"n{number}") for number in range(KEPT_PEERS - 1))
    remember_peers(tmp_path, newer)
    assert _loaded(tmp_path).peer_addresses == (*newer, _address("b", 3))


def test_the_host_is_dialled_before_the_peers_and_nobody_twice(tmp_path: Path) -> None:
    known = {"bootstrap": (_address("host"), _address("a")), "peer_addresses": (_address("a"), _address("b"))}
    assert _membership().model_copy(update=known).ways_in == (_address("host"), _address("a"), _address("b"))


def test_nothing_is_remembered_of_a_run_that_was_never_joined(tmp_path: Path) -> None:
    remember_peers(tmp_path, ("a",))
    assert load_membership(tmp_path) is None


def test_a_file_from_before_peers_were_remembered_is_read(tmp_path: Path) -> None:
    save_membership(tmp_path, _membership())
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace(',"peer_addresses":[]', ""))
    assert "peer_addresses" not in path.read_text()
    assert _loaded(tmp_path).peer_addresses == ()


def test_services_that_remember_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    save_membership(tmp_path, _membership())
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for number in range(20):
            one.submit(remember_peers, tmp_path, (str(number),))
            other.submit(remember_credential, tmp_path, str(number).encode(), b"key")
    loaded = _loaded(tmp_path)
    assert (loaded.peer_addresses[0], loaded.credential) == ("19", b"19")
