"""Places on this machine, with sizes: links are not followed."""

from __future__ import annotations

from pathlib import Path

from averaging.system.known_places import measured, places_json, places_text


def test_a_folder_is_measured_with_all_below_it_and_a_link_only_itself(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 10_000)
    folder = tmp_path / "state"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"x" * 1_000)
    (folder / "link").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    assert 1_000 <= (measured("state", folder).num_bytes or 0) < 2_000
    link = measured("link", folder / "link")
    assert (link.num_bytes or 0) < 1_000
    assert link.note == f"a link to {outside}"
    assert measured("file", outside).num_bytes == 10_000


def test_what_is_not_there_is_said_and_the_path_is_whole(tmp_path: Path) -> None:
    absent = tmp_path / ("a" * 120) / "settings.toml"
    found = {"peer": [measured("settings file", absent, "a note"), measured("state folder", tmp_path)]}
    text = places_text(found)
    assert text[0] == "peer:"
    assert text[1].startswith("  settings file  not there  ")
    assert text[1].endswith(f"{absent} (a note)")
    (first, second) = places_json(found)["peer"]  # type: ignore[misc]
    assert first == {"what": "settings file", "path": str(absent), "bytes": None, "note": "a note"}
    assert second["bytes"] == 0
