"""peer/SETTINGS.md and coordinator/SETTINGS.md, made of the settings themselves.

`python -m tests.settings_pages` writes both files. tests/test_settings_pages.py fails where one is not current.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from averaging.host.settings import DaemonSettings, descriptions
from coordinator.policy.config import HostConfig
from peer.settings.config import PeerConfig
from protocol.run.manifest import RunFile
from protocol.run.section import OneOf
from protocol.run.source_section import SourceSection
from protocol.tensors.model_families import DEFAULT_FAMILY, FAMILIES, FAMILY_KEY, config_class

ROOT: Final = Path(__file__).parents[1]
COMMAND: Final = "python -m tests.settings_pages"

_KINDS: Final = {
    int: "whole number",
    float: "number",
    bool: "yes or no",
    str: "text",
    Path: "path",
    list[str]: "list of texts",
}


def pages() -> dict[Path, str]:
    """The text of each page, by its path."""
    return {
        ROOT / "peer" / "SETTINGS.md": _page("Settings of a peer", _daemon("peer", "join", PeerConfig)),
        ROOT / "coordinator" / "SETTINGS.md": _page(
            "Settings of a host and of a run", _daemon("host", "host", HostConfig), _run()
        ),
    }


def write_pages() -> list[Path]:
    """Write the pages that are not current; returns their paths."""
    changed = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf8") != text]
    for path in changed:
        path.write_text(pages()[path], encoding="utf8")
    return changed


def _page(title: str, *parts: str) -> str:
    made = f"<!-- Made by `{COMMAND}` of the settings' own descriptions. Change those, and run it again. -->"
    return "\n\n".join([f"# {title}", made, *parts]) + "\n"


def _daemon(daemon: str, command: str, settings: type[DaemonSettings]) -> str:
    prefix = settings.model_config["env_prefix"]
    intro = f"""## {daemon}.toml

A setting `some_name` can be given in three ways: as the flag `--some-name` of `potluck {command}`, as the environment variable
`{prefix}SOME_NAME`, or as the key `some_name` in `{daemon}.toml`. That file lies in the configuration folder,
`~/.config/potluck` on Linux. A flag wins over a variable. A variable wins over the file. `potluck {command} --dry-run` lists every
setting with its value and where it comes from."""
    return f"{intro}\n\n{_table('setting', settings)}"


def _run() -> str:
    intro = """## run.toml

The host describes a run in this file. `potluck init` writes one that works. Every peer gets these numbers, and they stay the same for
the whole run; the words of `[page]` are the host's alone. `potluck host run.toml --dry-run` lists every key with its value."""
    sections = []
    for title, model, known in _sections():
        reported = f"### {title}\n\n{_one_line(model.__doc__)}"
        reported += " It has the keys of [model] above, and these:" if known else ""
        sections.append(f"{reported}\n\n{_table('key', model, known)}")
    return "\n\n".join([intro, *sections])


def _sections() -> Iterator[tuple[str, type[BaseModel], frozenset[str]]]:
    """Title and model of each section of run.toml, and keys that are explained before. [model] has one for each family."""
    for name, field in RunFile.model_fields.items():
        if get_origin(_plain(field.annotation)) is tuple:
            yield f"[[{name}]]", get_args(_plain(field.annotation))[0], frozenset()
            continue
        if name != "model":
            yield f"[{name}]", _plain(field.annotation), frozenset()
            if name == "data":
                yield "[[data.source]]", SourceSection, frozenset()
            continue
        yield f"[{name}]", config_class(DEFAULT_FAMILY), frozenset()
        known = frozenset(config_class(DEFAULT_FAMILY).model_fields) - {FAMILY_KEY}
        for family in FAMILIES:
            if family != DEFAULT_FAMILY:
                yield (
                    f'[{name}] with family = "{family}"',
                    config_class(family),
                    known & set(config_class(family).model_fields),
                )


def _table(first: str, model: type[BaseModel], known: Collection[str] = ()) -> str:
    lines = [f"| {first} | default | values | meaning |", "|---|---|---|---|"]
    reported = descriptions(model)
    for name, field in model.model_fields.items():
        if name in known or name == "sources":  # sources are written as sections, which have a table of their own
            continue
        cells = (f"`{name}`", _default(field), _values(field), reported.get(name, ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None or field.default in (None, "", []):
        return "not given"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def _values(field: FieldInfo) -> str:
    """The kind of the value, and its range or its choices."""
    kind = _plain(field.annotation)
    listed = [each for each in [*field.metadata, *_metadata(field.annotation)] if isinstance(each, OneOf)]
    choices = get_args(kind) if get_origin(kind) is Literal else [name for each in listed for name in each.names]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices if choice != "")
    bounds = " ".join(_bounds([field, *_metadata(field.annotation)]))
    return f"{_KINDS[kind]} {bounds}".strip()


def _bounds(metadata: list[Any]) -> Iterator[str]:
    """The range that the metadata gives, in words."""
    flat = [each for part in metadata for each in (part, *getattr(part, "metadata", ()))]
    for name, reported in (("ge", "from"), ("gt", "above"), ("le", "to"), ("lt", "below")):
        yield from (f"{reported} {_number(getattr(each, name))}" for each in flat if hasattr(each, name))


def _number(bound: float) -> str:
    """Powers of two as such where they are long."""
    whole = int(bound)
    if whole == bound and whole > 1 << 16 and (whole & (whole - 1) == 0 or whole & (whole + 1) == 0):
        return f"2^{whole.bit_length() - 1}" if whole & (whole - 1) == 0 else f"2^{whole.bit_length()} - 1"
    return f"{whole:,}" if whole == bound else f"{bound:g}"


def _metadata(annotation: Any) -> list[Any]:
    """The metadata that an annotation carries beside its type, also inside `... | None`."""
    if get_origin(annotation) is Annotated:
        return list(get_args(annotation)[1:])
    return [each for part in get_args(annotation) for each in _metadata(part)]


def _plain(annotation: Any) -> Any:
    """The type of an annotation: without its metadata, and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (kind,) = (each for each in get_args(annotation) if each is not NoneType)
        return _plain(kind)
    return annotation


if __name__ == "__main__":
    sys.stdout.writelines(f"wrote {path.relative_to(ROOT)}\n" for path in write_pages())
