"""A stage's snapshot as bytes: it goes on elsewhere as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from peer.pipeline.stage import stage_snapshot
from peer.pipeline.stage.stage_snapshot import check_snapshot, layout_of, most_snapshot_bytes, read_layout, theta_of
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import stage_schema
from tests.peer.lane_world import INNER
from tests.peer.stage_world import MODEL, STAGES, micro_batch, stage_model
from tests.peer.whole_snapshot import decode_snapshot, encode_snapshot, in_memory, restore, snapshot_of

MUON = InnerSection(learning_rate=0.01, batch_tokens=16, optimizer="muon")
SCHEMA = stage_schema(STAGES, 1)


def _trainer(inner: InnerSection = INNER, dtype: torch.dtype = torch.float64, steps: int = 1) -> StageTrainer:
    """The middle stage after some steps on noise."""
    trainer = StageTrainer(stage_model(1, dtype), inner, most_kept=1)
    for step in range(steps):
        noise_BTD = torch.randn(1, 4, MODEL.dim, generator=torch.Generator().manual_seed(step), dtype=dtype)
        batch = micro_batch(step=step)
        trainer.passes.forward(batch, noise_BTD)
        trainer.passes.backward(batch, noise_BTD)
        trainer.take_step(trainer.gradient_square(), 0.01)
    return trainer


def _same(one: StageSnapshot, other: StageSnapshot) -> bool:
    pairs = zip((one.theta_N, *one.moments), (other.theta_N, *other.moments), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("inner", [INNER, MUON])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_snapshot_comes_back_as_it_was_and_goes_on_as_if_it_had_been_there(
    inner: InnerSection, dtype: torch.dtype
) -> None:
    snapshot = snapshot_of(_trainer(inner, dtype))
    data = encode_snapshot(snapshot)
    assert len(data) <= most_snapshot_bytes(SCHEMA)
    decoded = decode_snapshot(data, SCHEMA)
    assert _same(decoded, snapshot)
    other = _trainer(inner, dtype, steps=0)
    restore(other, decoded)
    assert _same(snapshot_of(other), snapshot)


def test_a_snapshot_before_the_first_step_has_no_moments() -> None:
    decoded = decode_snapshot(encode_snapshot(snapshot_of(_trainer(steps=0))), SCHEMA)
    assert decoded.moments == ()


def test_the_parameters_of_a_snapshot_are_read_in_pieces_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_snapshot, "_PIECE_BYTES", 64)
    for snapshot in (snapshot_of(_trainer()), _of_many_types()):
        data = encode_snapshot(snapshot)
        check_snapshot(data, SCHEMA)
        theta_N = theta_of(data, SCHEMA)
        assert theta_N.dtype == snapshot.theta_N.dtype
        assert torch.equal(theta_N, snapshot.theta_N)


def test_a_check_takes_memory_for_a_piece_only(monkeypatch: pytest.MonkeyPatch) -> None:
    data, most_bytes = encode_snapshot(snapshot_of(_trainer())), [0]
    frombuffer = torch.frombuffer

    def counted(room: bytearray, *, dtype: torch.dtype) -> torch.Tensor:
        most_bytes.append(len(room))
        return frombuffer(room, dtype=dtype)

    monkeypatch.setattr(stage_snapshot, "_PIECE_BYTES", 64)
    monkeypatch.setattr(torch, "frombuffer", counted)
    check_snapshot(data, SCHEMA)
    assert max(most_bytes) == 64


def test_a_snapshot_of_another_stage_is_refused() -> None:
    data = encode_snapshot(snapshot_of(_trainer()))
    for read in (check_snapshot, theta_of):
        with pytest.raises(RemoteProtocolError, match="values"):
            read(data, stage_schema(STAGES, 0))


@pytest.mark.parametrize("place", [0, 3, -1])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_refused(place: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_snapshot, "_PIECE_BYTES", 64)
    snapshot = snapshot_of(_trainer())
    tensors = (snapshot.theta_N, *(moment for moment in snapshot.moments if moment.dim()))
    for tensor, readers in ((tensors[0], (check_snapshot, theta_of)), (tensors[-1], (check_snapshot,))):
        before = tensor.view(-1)[place].clone()
        tensor.view(-1)[place] = value
        for read in readers:
            with pytest.raises(RemoteProtocolError, match="not finite"):
                read(encode_snapshot(snapshot), SCHEMA)
        tensor.view(-1)[place] = before
    check_snapshot(encode_snapshot(snapshot), SCHEMA)


def test_values_that_are_no_floats_are_refused() -> None:
    snapshot = snapshot_of(_trainer())
    whole = replace(snapshot, theta_N=torch.zeros(snapshot.theta_N.shape, dtype=torch.int64))
    with pytest.raises(RemoteProtocolError, match="floats"):
        check_snapshot(encode_snapshot(whole), SCHEMA)


def test_damaged_bytes_and_other_names_are_refused() -> None:
    data = encode_snapshot(snapshot_of(_trainer()))
    for wrong in (b"", data[:100], data[:-8], data + b"more", b"\xff" * 64, save({"other": torch.zeros(3)})):
        with pytest.raises(RemoteProtocolError):
            check_snapshot(bytes(wrong), SCHEMA)


@pytest.mark.parametrize("num_bytes", [4 * SCHEMA.num_elements, 8 * SCHEMA.num_elements])
def test_tensors_that_share_bytes_are_refused(num_bytes: int) -> None:
    head = {"theta": _THETA, "moment.0": _THETA}
    with pytest.raises(RemoteProtocolError, match="without gaps"):
        read_layout(_with_head(head, num_bytes), SCHEMA)


@pytest.mark.parametrize("inner", [INNER, MUON])
def test_moments_of_other_shapes_are_not_loaded(inner: InnerSection) -> None:
    snapshot = snapshot_of(_trainer(inner))
    wrong = replace(snapshot, moments=tuple(torch.zeros(1, dtype=torch.float64) for _ in snapshot.moments))
    with pytest.raises(LocalProtocolError, match="of shape"):
        restore(_trainer(inner, steps=0), wrong)


# --- the places of its tensors ---


def _of_many_types() -> StageSnapshot:
    """A moment of each type, more than ten of them, some without values or dimensions."""
    types = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    moments = [torch.randn(2, number % 3).to(types[number % 4]) for number in range(12)]
    return StageSnapshot(torch.randn(SCHEMA.num_elements), (*moments, torch.tensor(3.0)))


def test_the_places_are_those_at_which_safetensors_writes() -> None:
    snapshot = _of_many_types()
    data, tensors = encode_snapshot(snapshot), (snapshot.theta_N, *snapshot.moments)
    layout = layout_of([(each.dtype, tuple(each.shape)) for each in tensors])
    assert data.startswith(layout.head)
    assert layout.num_bytes == len(data)
    assert layout == read_layout(in_memory(data), SCHEMA)
    assert _same(layout.views(in_memory(data)), snapshot)


def test_what_is_written_at_the_places_is_the_snapshot_bit_for_bit() -> None:
    snapshot = _of_many_types()
    tensors = (snapshot.theta_N, *snapshot.moments)
    layout = layout_of([(each.dtype, tuple(each.shape)) for each in tensors])
    memory = torch.full((layout.num_bytes + 5,), 255, dtype=torch.uint8)
    memory[: len(layout.head)] = in_memory(layout.head)
    views = layout.views(memory)
    for room, values in zip((views.theta_N, *views.moments), tensors, strict=True):
        room.copy_(values)
    assert memory[: layout.num_bytes].numpy().tobytes() == encode_snapshot(snapshot)


def _with_head(head: object, values: int = 64) -> torch.Tensor:
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return in_memory(len(text).to_bytes(8, "little") + text + bytes(values))


_THETA = {"dtype": "F32", "shape": [SCHEMA.num_elements], "data_offsets": [0, 4 * SCHEMA.num_elements]}


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ([], "cannot be read"),
        ({"theta": {**_THETA, "dtype": "I32"}}, "cannot be read"),
        ({"theta": {**_THETA, "shape": [-4]}}, "cannot be read"),
        ({"theta": {**_THETA, "shape": ["4"]}}, "cannot be read"),
        ({"theta": {**_THETA, "data_offsets": [0]}}, "cannot be read"),
        ({"theta": {**_THETA, "data_offsets": [-4, 0]}}, "cannot be read"),
        ({"theta": {**_THETA, "more": 1}}, "cannot be read"),
        ({}, "other names"),
        ({"theta": _THETA, "moment.1": _THETA}, "other names"),
        ({"theta": _THETA}, "the bytes of"),
        ({"theta": {**_THETA, "data_offsets": [0, 64]}}, "the bytes of"),
        ({"theta": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "values"),
    ],
)
def test_a_head_that_names_no_places_of_this_stage_is_refused(head: object, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        read_layout(_with_head(head), SCHEMA)


def test_no_damage_of_a_head_leads_out_of_the_memory() -> None:
    good, draw = bytearray(encode_snapshot(snapshot_of(_trainer()))), random.Random(3)
    head_bytes = 8 + int.from_bytes(good[:8], "little")
    num_read = 0
    for _ in range(600):
        wrong = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            wrong[draw.randrange(head_bytes)] = draw.choice([draw.randrange(256), ord(str(draw.randrange(10)))])
        data = in_memory(bytes(wrong[: draw.choice([len(wrong), draw.randrange(len(wrong))])]))
        try:
            layout = read_layout(data, SCHEMA)
        except RemoteProtocolError:
            continue
        num_read += 1
        assert all(0 <= place.begin <= place.stop <= len(data) for place in layout.places)
        layout.views(data)
    assert num_read < 100
