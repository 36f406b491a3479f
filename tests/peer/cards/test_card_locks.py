from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.cards.card_locks import CardLocks, lock_folder
from protocol.errors import MachineError

_HOLDS = """
import sys
from pathlib import Path
from peer.cards.card_locks import CardLocks
locks = CardLocks(Path(sys.argv[1]))
print(sorted(locks.take(sys.argv[2:])), flush=True)
sys.stdin.read()
"""


def test_a_card_has_one_peer_until_that_one_ends_however_it_does(tmp_path: Path) -> None:
    folder = tmp_path / "cards"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(folder), "GPU-a", "GPU-b"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "[]\n"
        locks = CardLocks(folder)
        assert locks.take(["GPU-a", "GPU-c", ""]) == {"GPU-a"}
        other.kill()
        other.wait()
        assert locks.take(["GPU-a"]) == frozenset()
    locks.close()


def test_a_released_card_is_free_again(tmp_path: Path) -> None:
    one, other = CardLocks(tmp_path), CardLocks(tmp_path)
    tmp_path.chmod(0o700)
    assert one.take(["MIG-a/1/0"]) == frozenset()
    assert one.take(["MIG-a/1/0"]) == frozenset(), "it is its own"
    assert other.take(["MIG-a/1/0"]) == {"MIG-a/1/0"}
    one.close()
    assert other.take(["MIG-a/1/0"]) == frozenset()
    other.close()


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(MachineError, match="others may write there"):
        CardLocks(tmp_path).take(["GPU-a"])
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cards cannot be locked"):
        CardLocks(tmp_path / "file").take(["GPU-a"])


def test_the_folder_is_the_users_own() -> None:
    assert lock_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/potluck-cards")
    assert lock_folder({}).name.startswith("potluck-cards-")
