from __future__ import annotations

from averaging.state.proof_files import FOLDER, MOST_KEPT, ProofFiles
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.rounds.audit.sum_proof import hash_of_proof


async def test_a_proof_is_found_by_the_next_process_too() -> None:
    disk = MemoryDisk()
    assert await ProofFiles(MemoryStorage(disk)).write(b"a proof")
    assert await ProofFiles(MemoryStorage(disk)).write(b"a proof"), "twice is once"
    assert await ProofFiles(MemoryStorage(disk)).load() == [b"a proof"]


async def test_a_file_with_other_bytes_than_its_name_says_is_passed_over() -> None:
    storage = MemoryStorage(MemoryDisk())
    files = ProofFiles(storage)
    await files.write(b"whole")
    await files.write(b"damaged")
    await storage.write_atomic(FOLDER + hash_of_proof(b"damaged").hex(), [b"damagee"])
    assert await files.load() == [b"whole"]


async def test_no_more_proofs_are_kept_than_there_is_room_for() -> None:
    files = ProofFiles(MemoryStorage(MemoryDisk()))
    kept = [await files.write(b"proof %d" % number) for number in range(MOST_KEPT + 3)]
    assert kept == [True] * MOST_KEPT + [False] * 3
    assert len(await files.load()) == MOST_KEPT
