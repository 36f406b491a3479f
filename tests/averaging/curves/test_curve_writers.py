"""Curves as CSV, TensorBoard events and a run of Weights & Biases; the latter two with stand-ins that take the same calls."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from averaging.curves.curve import COLUMNS, Curve, CurvePoint
from averaging.curves.curve_writers import write_csv, write_tensorboard, write_wandb
from protocol.errors import MachineError, StorageError

CURVE = Curve(
    "our run/ü",
    "0123456789abcdef",
    (
        CurvePoint(1, 1000.0, 500, 2, 200, None, 3.0),
        CurvePoint(2, None, 900, 3, None, 0.6931471805599453, None),
    ),
)


def test_a_csv_has_a_line_a_round_and_nothing_for_the_unknown(tmp_path: Path) -> None:
    file = tmp_path / "curves.csv"
    write_csv(CURVE, file)
    with file.open(newline="", encoding="utf8") as opened:
        first, second = csv.DictReader(opened)
    assert tuple(first) == COLUMNS
    assert (first["round"], first["tokens"], first["own_tokens"], first["heldout_loss_nats"]) == ("1", "500", "200", "")
    assert float(first["train_bits_per_byte"]) == pytest.approx(4.328, abs=1e-3)
    assert (second["unix_s"], second["own_tokens"], second["heldout_bits_per_byte"]) == ("", "", "1.0")
    assert list(tmp_path.iterdir()) == [file]


def test_a_csv_is_printed_for_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(CURVE, Path("-"))
    printed = capfd.readouterr().out
    write_csv(CURVE, Path("curves.csv"))
    assert printed.splitlines() == Path("curves.csv").read_text(encoding="utf8").splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["curves.csv"]


def test_a_csv_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write_csv(CURVE, tmp_path / "none" / "curves.csv")


def test_tensorboard_gets_a_scalar_for_each_known_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            made.append(log_dir)

        def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float | None) -> None:
            made.append((tag, scalar_value, global_step, walltime))

        def close(self) -> None:
            made.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    write_tensorboard(CURVE, tmp_path)
    assert made[0] == str(tmp_path / "our-run---01234567")
    assert ("train_loss_nats", 3.0, 1, 1000.0) in made
    assert ("heldout_bits_per_byte", 1.0, 2, None) in made
    assert made[-1] == "closed"
    assert len(made) == 2 + 5 + 4


def fake_wandb(calls: list[object]) -> ModuleType:
    module = ModuleType("wandb")

    class Error(Exception):
        pass

    def init(*, project: str, name: str, id: str, resume: str) -> object:  # noqa: A002 - wandb's own name
        calls.append((project, name, id, resume))
        return SimpleNamespace(
            log=lambda data, step: calls.append((step, data)),
            dir="/runs/files",
            finish=lambda: calls.append("finished"),
        )

    module.Error, module.init = Error, init  # type: ignore[attr-defined]
    return module


def test_weights_and_biases_gets_one_run_that_can_be_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    assert write_wandb(CURVE, "project") == "/runs/files"
    assert calls[0] == ("project", "our run/ü", "our-run---01234567", "allow")
    assert calls[1] == (
        1,
        {
            "tokens": 500,
            "members": 2,
            "own_tokens": 200,
            "train_loss_nats": 3.0,
            "train_bits_per_byte": pytest.approx(4.328, abs=1e-3),
            "unix_s": 1000.0,
        },
    )
    assert calls[-1] == "finished"


def test_a_refusal_of_weights_and_biases_names_the_way_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_wandb([])

    def refuse(**_settings: object) -> object:
        raise module.Error("no API key")

    module.init = refuse
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(MachineError, match=r"no API key.*WANDB_MODE=offline"):
        write_wandb(CURVE, "project")


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_without_the_extra_the_error_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    write = {"tensorboard": lambda: write_tensorboard(CURVE, tmp_path), "wandb": lambda: write_wandb(CURVE, "project")}
    with pytest.raises(MachineError, match=rf"pip install 'potluck-train\[{package}\]'"):
        write[package]()


def test_a_dash_in_the_place_of_a_csv_file_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(CURVE, Path("-"))
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines)) == (",".join(COLUMNS), 3)
    assert list(tmp_path.iterdir()) == []
