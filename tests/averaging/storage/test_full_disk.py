from __future__ import annotations

from pathlib import Path

from averaging.storage.full_disk import full_disk_sentence, is_of_full_disk


def test_full_disk_is_known_by_what_the_system_says_and_told_with_what_to_do() -> None:
    assert is_of_full_disk("could not write x: No space left on device")
    assert is_of_full_disk("could not write x: Disk quota exceeded")
    assert not is_of_full_disk("could not write x: Permission denied")
    assert full_disk_sentence(Path("/state")).startswith("the disk of /state is full: free some space;")
