from __future__ import annotations

from pathlib import Path

from averaging.storage.full_disk import FULL_BYTES, full_disk_sentence, is_of_full_disk
from protocol.tables import in_bytes


def test_full_disk_is_known_by_what_the_system_says_and_told_with_what_to_do() -> None:
    assert is_of_full_disk("could not write x: No space left on device")
    assert is_of_full_disk("could not write x: Disk quota exceeded")
    assert not is_of_full_disk("could not write x: Permission denied")


def test_full_disk_is_told_with_what_is_needed_and_free_and_a_quota_without() -> None:
    def said(needed_bytes: int, free_bytes: int | None) -> str:
        return full_disk_sentence(Path("/state"), needed_bytes, free_bytes)

    assert said(9_000_000, 4096) == (
        "the disk at /state is full: 9.0 MB needed, 4.1 kB free; free space and it goes on"
    )
    assert (
        said(-1, 0) == f"the disk at /state is full: {in_bytes(FULL_BYTES)} needed, 0 B free; free space and it goes on"
    )
    for free_bytes in (None, 10_000_000):
        assert said(9_000_000, free_bytes) == (
            "the disk at /state is full: it refuses to take more, or a quota is used up; free space and it goes on"
        )
