"""`python -m tests.benchmarks.pipeline_end FOLDER NAME CODEC SCHEDULE SPARE ADDRESS`: a peer of one lane, as a process of its own.

The peers' network with direct bulk, and a training process of one thread, as a daemon has them; no rounds. SPARE is "spare" in a lane
that has one, which loses members, and "none" in one that loses none. The first line that it
prints is {"peer", "addresses"}; it reads one with those of all ends, by name. The end that is named "stage0" keeps the lane. Then:

    "steps N"   at stage0: the lane takes so many inner steps from now on; prints {"seconds"} when they are done
    "begin"     at stage0: the lane goes on for good; prints {}
    "leave"     give the seat back; prints {"left_s"}
    "loss N"    at the last stage: once so many inner steps were taken since the start, prints {"loss_nats"} of the last one
    "marks"     prints {"marks"}: the ends of the passes so far, as [clock, epoch, micro-batch, is_backward]
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import structlog
import torch
import trio

import peer.pipeline.seats.lane_seat
import peer.pipeline.transport.lane_outbox
from averaging.network.direct.direct import DirectOptions
from averaging.network.direct.tls_identity import TlsCredential, credential_check
from averaging.network.libp2p.libp2p_network import NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.directory import signed_record_rule
from averaging.network.seams.interfaces import Network
from averaging.network.seams.offload import ThreadOffload
from peer.pipeline.seats.lane_keeper import LaneKeepers
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.stage.process_work import ProcessWork
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.stage.stage_process import StageProcess, open_stage_process
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_work import LaneContext, LaneShare
from protocol.identity.credential import make_ca
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.run.pipeline_section import PipelineSection
from tests.benchmarks import pipeline_plan as plan

KEEPER: Final = "stage0"
SPARE: Final = "spare"
SPARE_STAGE: Final = 1
STAGE_OF: Final = {"stage0": 0, "stage1": 1, "stage2": 2, SPARE: SPARE_STAGE}
IDENTITIES: Final = {name: Identity(name.encode().ljust(32, b"p")) for name in STAGE_OF}
_CA_FILE: Final = "ca.der"
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 3600.0
"""A lane stands still at the gate in mid-step while others are measured, and is not stuck. A setting without losses suspects no peer,
however long this machine does something else.
"""


def write_credentials(folder: Path) -> None:
    """The material that all ends need: a CA, and a credential with its key for each."""
    now_s = time.time()
    authority = make_ca(b"c" * 32, now_unix_s=now_s)
    (folder / _CA_FILE).write_bytes(authority.certificate_der)
    for name, identity in IDENTITIES.items():
        certificate, key = authority.issue_own(identity.peer_id, plan.RUN, now_unix_s=now_s, days=1)
        (folder / f"{name}.der").write_bytes(certificate)
        (folder / f"{name}.pem").write_bytes(key)


@asynccontextmanager
async def _network(folder: Path, name: str, address: str) -> AsyncIterator[Network]:
    identity, ca = IDENTITIES[name], (folder / _CA_FILE).read_bytes()
    file = folder / f"{name}.identity"
    file.write_bytes(identity.libp2p_private_key_bytes())
    file.chmod(0o600)
    own = TlsCredential((folder / f"{name}.der").read_bytes(), (folder / f"{name}.pem").read_bytes())
    options = NetworkOptions(
        P2pdOptions(file, listen=(f"/ip4/{address}/tcp/0",)),
        signed_record_rule(Ed25519Verifier(), plan.RUN),
        direct=DirectOptions(lambda: own, ca, credential_check(ca, plan.RUN, time.time), address),
    )
    async with (
        open_asyncio_thread() as thread,
        open_libp2p_network(thread, options, identity.peer_id, unix_s=time.time) as network,
    ):
        yield network


class CallLimiter:
    """Lets a stage begin so many inner steps, and says when it wants to begin one more."""

    def __init__(self) -> None:
        self._left = 0.0
        self._more = trio.Event()
        self._waits = trio.Event()

    async def run(self, steps: float) -> float:
        """Let them begin; seconds until all are done."""
        await self._waits.wait()
        began_s = time.monotonic()
        self._left, self._waits = steps, trio.Event()
        self._more.set()
        self._more = trio.Event()
        if steps < inf:
            await self._waits.wait()
        return time.monotonic() - began_s

    async def begin_step(self) -> None:
        """Wait until one is allowed."""
        while not self._left:
            self._waits.set()
            await self._more.wait()
        self._left -= 1


class End:
    """The questions to one end."""

    def __init__(self, name: str) -> None:
        self.gate = CallLimiter()
        self.loss_nats: float | None = None
        self.num_steps = 0
        self.marks: list[tuple[float, int, int, bool]] = []
        self.is_gated = name == KEEPER
        self.member: LaneMember | None = None

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken."""
        self.loss_nats = reply.loss_nats
        self.num_steps += 1

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """A pass is done; when, `WatchedWork` notes."""

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """For how long is told by nobody here."""

    async def ask(self, line: str) -> dict[str, object]:
        """The answer to a line of the input."""
        word, *numbers = line.split()
        match word:
            case "steps":
                return {"seconds": await self.gate.run(int(numbers[0]))}
            case "begin":
                await self.gate.run(inf)
            case "leave" if self.member is not None:
                self.member.leave("asked to")
                return {"left_s": time.monotonic()}
            case "loss":
                while self.num_steps < int(numbers[0]):  # the first stage is ahead of the last one
                    await trio.sleep(_LOOK_S)
                return {"loss_nats": self.loss_nats}
            case "marks":
                return {"marks": self.marks}
        return {}


class WatchedWork(ProcessWork):
    """The stage's compute, with a gate before each inner step of the first one, and a mark after each pass."""

    end: End

    async def run_pass(self, epoch: int, at: Point, work: Pass) -> bytes | None:
        """As `StageWork`."""
        if self.end.is_gated and work == Pass(0, False):
            await self.end.gate.begin_step()
        left = await super().run_pass(epoch, at, work)
        self.end.marks.append((time.monotonic(), epoch, work.number, work.is_backward))
        return left


async def _no_round(share: LaneShare) -> torch.Tensor:
    raise SystemExit(f"a round of {share.tokens} tokens in a benchmark without any")


async def _bring_nothing(share: LaneShare) -> None:
    """The work that a lane leaves behind has no round to go to."""


def _tools(network: Network, process: StageProcess, end: End, pipeline: PipelineSection, held: int) -> LaneContext:
    anchor_N = plan.anchor_of(held)  # a peer has it at hand, too, when it takes a seat

    def work_of(lane: int, stage: int) -> ProcessWork:
        work = WatchedWork(process, lane, lambda: (anchor_N, 0), end)
        work.end = end
        return work

    form = LaneShape(
        plan.RUN,
        pipeline.lane_config(plan.MODEL, plan.INNER),
        plan.STAGES,
        (plan.SEQUENCES, plan.MODEL.context_tokens),
        pipeline.forward_codec,
        pipeline.backward_codec,
    )
    return LaneContext(OwnLoop(network), ThreadOffload(), form, work_of, _no_round)


async def _keep(keepers: LaneKeepers, members: tuple[PeerId, ...]) -> None:
    state = await keepers.keep(plan.LANE, members, Point(0, 0))
    raise SystemExit(f"the lane ended at {state.at}: is this machine doing something else?")


async def _line() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


async def _run(folder: Path, name: str, pipeline: PipelineSection, address: str, *, has_spare: bool) -> None:
    end, keeper = End(name), IDENTITIES[KEEPER].peer_id
    stage = plan.stage_plan(folder, STAGE_OF[name], pipeline)
    async with (
        _network(folder, name, address) as network,
        open_stage_process(stage) as process,
        trio.open_nursery() as nursery,
    ):
        tools = _tools(network, process, end, pipeline, STAGE_OF[name])
        end.member = LaneMember(tools, lambda lane: keeper, _bring_nothing)
        end.member.serve()
        nursery.start_soon(end.member.run)
        spares: list[PeerId] = []
        patient = replace(tools.config, stalled_after_s=_PATIENCE_S)
        if not has_spare:
            patient = replace(patient, suspect_after_s=_PATIENCE_S)
            setattr(peer.pipeline.seats.lane_seat, "KEEPER_SILENT_S", _PATIENCE_S)  # noqa: B010 - it is Final
            setattr(peer.pipeline.transport.lane_outbox, "MOVES_WITHIN_S", _PATIENCE_S)  # noqa: B010 - it is Final
        keepers = LaneKeepers(
            tools.network, patient, lambda: tuple((peer, frozenset({SPARE_STAGE})) for peer in spares)
        )
        keepers.serve()
        while not process.is_ready:
            await trio.sleep(0.05)
        await process.ask("slow", {"factor": 1.0})  # answered once it has begun to work
        print(json.dumps({"peer": network.peer_id, "addresses": network.addresses()}), flush=True)
        reported = json.loads(await _line())
        for other in set(reported) - {name}:
            await network.add_addresses(reported[other]["addresses"])
        if name == KEEPER:
            spares += [PeerId(reported[SPARE]["peer"])] if SPARE in reported else []
            members = tuple(PeerId(reported[f"stage{number}"]["peer"]) for number in range(plan.NUM_STAGES))
            nursery.start_soon(_keep, keepers, members)
        while line := await _line():
            print(json.dumps(await end.ask(line)), flush=True)
        nursery.cancel_scope.cancel()


def main() -> None:
    """As the command line says."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    folder, name, codec, schedule, spare, address = sys.argv[1:]
    if codec not in ("fp32", "int8") or schedule not in ("gpipe", "1f1b"):
        raise SystemExit(f"codec {codec}, schedule {schedule}: expected fp32 or int8, gpipe or 1f1b")
    torch.set_num_threads(1)
    pipeline = plan.pipeline_section("fp32" if codec == "fp32" else "int8", "gpipe" if schedule == "gpipe" else "1f1b")
    trio.run(partial(_run, has_spare=spare == SPARE), Path(folder), name, pipeline, address)


if __name__ == "__main__":
    main()
