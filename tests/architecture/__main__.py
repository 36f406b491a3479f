"""`python -m tests.architecture`: the house in numbers."""

from __future__ import annotations

import sys

from tests.architecture.language import (
    counts_of,
    documents,
    relative_subjects_in,
    sentence_lengths,
    source_lab_notes,
    source_prose,
)
from tests.architecture.source import ROOMS, modules
from tests.architecture.structure import (
    circles,
    class_methods,
    dataclass_fields,
    files_by_folder,
    longest_functions,
    room_imports,
)


def main() -> None:
    """Print rooms, imports, sizes, and counts of the language."""
    lines = ["files  lines  room"]
    sizes = dict.fromkeys(files_by_folder(), 0)
    for module in modules():
        folder = module.path.rpartition("/")[0] or "."
        sizes[folder] = sizes.get(folder, 0) + len(module.text.splitlines())
    lines += [f"{count:5}  {sizes[folder]:5}  {folder}" for folder, count in sorted(files_by_folder().items())]
    lines += ["", "a room imports from"]
    lines += [
        f"  {room}: {', '.join(sorted(targets)) or 'nothing'}" for room, targets in sorted(room_imports().items())
    ]
    lines += ["", f"circles of rooms: {circles(room_imports()) or 'none'}", "", "longest functions"]
    lines += [f"{length:5}  {name}" for length, name in longest_functions(10)]
    for title, counts in (("most fields", dataclass_fields()), ("most methods", class_methods())):
        lines += [
            "",
            title,
            *(f"{count:5}  {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1])[:8]),
        ]
    lines += [
        "",
        "documents: lines, words, words a sentence (median, 90%, longest), longest paragraph, relative subjects, figures, links",
    ]
    for each in map(counts_of, documents()):
        found = (len(each.relative_subjects), len(each.figures), len(each.dead_links))
        length = f"{each.sentence_median:5.1f} {each.sentence_p90:3} {each.longest_sentence:3}"
        lines.append(
            f"{each.lines:5} {each.words:6} {length} {each.longest_paragraph:4} {found[0]:3} {found[1]:3} {found[2]:3}  {each.name}"
        )
    lines += ["", "source: words a sentence (median, 90%), relative subjects, laboratory notes"]
    for room in ROOMS:
        lengths = sentence_lengths(source_prose(room))
        counted = len(relative_subjects_in(source_prose(room))), len(source_lab_notes(room))
        lines.append(
            f"{lengths[len(lengths) // 2]:5} {lengths[int(len(lengths) * 0.9)]:3} {counted[0]:4} {counted[1]:4}  {room}"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
