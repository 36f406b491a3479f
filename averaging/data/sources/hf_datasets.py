"""Data sets of Hugging Face: a folder that `save_to_disk` wrote, or one from the Hub. Only a host that uses them needs
`datasets`.

The library reads them in batches of rows from its memory-mapped files. No code of a data set is run: releases of the library that
would run a data set's script, or unpickle its files, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.data.sources.columns import check_column, text_of
from averaging.data.sources.rows import Row
from averaging.data.sources.texts import Text, not_installed, one_document
from protocol.errors import ConfigError, MachineError, UnreachableError
from protocol.plain_file import check_plain_file

if TYPE_CHECKING:
    from datasets import Dataset

_STATE: Final = "state.json"
"""The file that says which others hold the rows of a saved data set, or of one of its splits."""

_SPLITS: Final = "dataset_dict.json"
"""The file with the names of a data set's splits, each of which has a folder of its own."""

_FIRST_RELEASE: Final = 5
"""Older releases may load pickle files and, below 4, Python scripts of a data set."""

_ROWS_AT_ONCE: Final = 64
"""Rows may be long. Small batches keep memory small, and larger ones would not be faster."""


@dataclass(frozen=True, slots=True)
class SavedDataset:
    """A folder on this machine. `split` selects one if it has several, and rows of it, as "train[:1%]"."""

    folder: Path
    split: str

    @property
    def split_name(self) -> str:
        """The split without its rows."""
        return self.split.partition("[")[0]

    def __str__(self) -> str:
        return str(self.folder)

    def check(self) -> None:
        """Raises ConfigError if there is no such folder, or a folder of another kind."""
        if not self.folder.is_dir():
            raise ConfigError(f"data.dataset: no folder {self}", "one that save_to_disk wrote", "check data.dataset")
        if not any((self.folder / name).is_file() for name in (_STATE, _SPLITS)):
            raise ConfigError(
                f"data.dataset: {self} was not written by save_to_disk",
                "a folder with state.json",
                "check data.dataset",
            )

    def num_bytes(self) -> int:
        """Length of its files of rows. Raises OSError if one is gone or cannot be read."""
        split = self.folder / self.split_name
        return sum(path.stat().st_size for path in (split if split.is_dir() else self.folder).glob("*.arrow"))


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the Hugging Face Hub, "OWNER/NAME". `configuration` is empty if it has only one."""

    name: str
    configuration: str
    split: str

    def __str__(self) -> str:
        return f"data set {self.name}"


def read_dataset(place: SavedDataset | HubDataset, column: str, heldout_every: int) -> Iterator[Text]:
    """The text column of every row, in order. Empty texts are left out. A data set from the Hub is downloaded first.

    Raises:
        ConfigError: no such data set, split or column, no rows, or a row without text; names the row.
        MachineError: it cannot be read to its end, or `datasets` is missing or of an unsafe release.
        UnreachableError: the Hub does not answer.
    """
    for row in _rows(place, [column], is_text=True):
        if text := text_of(row.values[column], row.place, column):
            yield one_document(text, row.place, heldout_every)


def dataset_rows(place: SavedDataset | HubDataset, columns: Sequence[str]) -> Iterator[Row]:
    """These columns of every row, in order, whatever they hold. Raises as `read_dataset`."""
    yield from _rows(place, columns, is_text=False)


def _rows(place: SavedDataset | HubDataset, columns: Sequence[str], *, is_text: bool) -> Iterator[Row]:
    dataset = _open_saved(place) if isinstance(place, SavedDataset) else _fetch(place)
    kinds = {field.name: field.type for field in dataset.features.arrow_schema}
    for column in columns:
        check_column(str(place), kinds, column, is_text=is_text)
    for number, values in enumerate(_values(dataset.select_columns(list(columns)), place, columns), 1):
        yield Row(dict(zip(columns, values, strict=True)), f"{place} row {number}")


def _values(dataset: Dataset, place: SavedDataset | HubDataset, columns: Sequence[str]) -> Iterator[tuple[object, ...]]:
    number = 0
    try:
        for batch in dataset.with_format("arrow").iter(_ROWS_AT_ONCE):
            # Mapped data is not validated by the library: an offset out of bounds would crash the process.
            batch.validate(full=True)
            for values in zip(*(batch.column(column) for column in columns), strict=True):
                number += 1
                yield tuple(value.as_py() for value in values)
    except (OSError, ValueError, IndexError) as error:
        raise _damaged(f"{place} is cut off or damaged after row {number}", error) from error


def _check_release() -> None:
    try:
        import datasets
    except ImportError as error:
        raise not_installed("datasets", "Hugging Face data sets") from error
    if int(datasets.__version__.partition(".")[0]) < _FIRST_RELEASE:
        raise MachineError(
            f"datasets {datasets.__version__} is installed, which may run what comes with a data set",
            f"release {_FIRST_RELEASE} or a newer one",
            'pip install "potluck-train[hf]"',
        )


def _open_saved(place: SavedDataset) -> Dataset:
    _check_release()
    from datasets import DatasetDict, load_from_disk

    place.check()
    for path in place.folder.rglob("*"):
        check_plain_file(path, "the files that save_to_disk wrote", "check data.dataset")
    folder = _split_folder(place)
    try:
        if not json.loads((folder / _STATE).read_bytes())["_data_files"]:
            raise ConfigError(f"{folder} has no rows", "some text", "take another data.dataset or data.split")
        loaded = load_from_disk(str(folder))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _damaged(f"{place} is cut off or damaged", error) from error
    if isinstance(loaded, DatasetDict):
        raise _damaged(f"{place} is cut off or damaged", ValueError("splits within a split"))
    return _rows_of(loaded, place)


def _rows_of(dataset: Dataset, place: SavedDataset) -> Dataset:
    """The rows that the split names, counted as `load_dataset` counts them on the Hub."""
    if place.split == place.split_name:
        return dataset
    from datasets import ReadInstruction

    try:
        rows = "rows" + place.split.removeprefix(place.split_name)
        (part,) = ReadInstruction.from_spec(rows).to_absolute({"rows": len(dataset)})
    except (AssertionError, ValueError) as error:
        raise _no_rows(dataset, place, f" ({_first_line(error)})") from error
    if part.from_ >= part.to:
        raise _no_rows(dataset, place)
    return dataset.select(range(part.from_, part.to))


def _no_rows(dataset: Dataset, place: SavedDataset, cause: str = "") -> ConfigError:
    found = f"{place} has no rows {place.split!r}{cause}; it has {len(dataset)}"
    return ConfigError(found, "some of them, such as train[:1%]", "set data.split")


def _split_folder(place: SavedDataset) -> Path:
    """The folder of the chosen split, which is the data set's own if it has no splits.

    Raises:
        ConfigError: there are other splits alone.
    """
    if (place.folder / _STATE).is_file():
        return place.folder
    folder = place.folder / place.split_name
    if not (folder / _STATE).is_file():
        try:
            known = ", ".join(map(str, json.loads((place.folder / _SPLITS).read_bytes())["splits"]))[:120] or "none"
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _damaged(f"{place} is cut off or damaged", error) from error
        raise ConfigError(
            f"{place} has no split {place.split_name!r}; its splits: {known}", "one of them", "set data.split"
        )
    return folder


def _fetch(place: HubDataset) -> Dataset:
    _check_release()
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    try:
        return load_dataset(place.name, place.configuration or None, split=place.split, streaming=False)
    except DatasetNotFoundError as error:
        raise ConfigError(
            f"{place} is not on the Hub, or not for everybody",
            "OWNER/NAME of one that you may read",
            _first_line(error),
        ) from error
    except ConnectionError as error:
        raise UnreachableError(
            f"{place}: {_first_line(error)}", "the Hugging Face Hub", "look at the network"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{place}: {_first_line(error)}",
            "a split and a configuration that it has",
            "set data.split, data.configuration",
        ) from error
    except (OSError, DatasetsError) as error:
        raise _damaged(f"{place} cannot be fetched", error) from error


def _damaged(found: str, error: Exception) -> MachineError:
    return MachineError(f"{found} ({_first_line(error)})", "a whole data set", "save or fetch it again")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
