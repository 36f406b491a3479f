from __future__ import annotations

from pathlib import Path

import pytest

from peer.membership_file import FILE_NAME, SavedMembership, load_membership, save_membership, take_session
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
    assert [take_session(tmp_path / "peer") for _ in range(3)] == [1, 2, 3]
    (tmp_path / "peer" / "session").write_text("not a number")
    with pytest.raises(StorageError):
        take_session(tmp_path / "peer")
