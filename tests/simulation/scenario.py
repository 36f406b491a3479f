"""The handles of a scripted run: a swarm, hooks on its round machines, and the end at which all must agree.

A scenario acts at the very step that it is about: `when` sees every step of every round machine before its orders are performed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds import machine as core
from protocol.rounds.events import Event, Switched
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.lineage import work_after, work_class
from protocol.rounds.lineage.quorum import first_opener, tie_holder
from protocol.rounds.messages.wire import encode_record
from protocol.rounds.orders import Action, Send
from protocol.rounds.state import RoundState, RoundStep
from tests.simulation import virtual_time
from tests.simulation.invariants import KnownCommit, Violation
from tests.simulation.lives import COUNTED, MINTED, READY
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.stories import Outcome, come_together, summary
from tests.simulation.swarm import RUN_ID, World

PATIENCE_S = 60.0
"""Awake time without a quorum after which peers commit alone, where rounds are not slower than that."""

BACK_WITHIN = 2
"""Rounds that others may commit before a peer that returned stands where they do."""


@dataclass(frozen=True)
class Seen:
    """One step of one node's round machine; its orders are not performed yet."""

    node: Node
    before: RoundState
    event: Event
    step: RoundStep

    @property
    def after(self) -> RoundState:
        """The state that it led to."""
        return self.step.state

    def sends(self, kind: type) -> bool:
        """Whether it orders to send such a message."""
        return any(isinstance(action, Send) and isinstance(action.message, kind) for action in self.step.actions)

    def orders(self, kind: type[Action]) -> bool:
        """Whether it gives such an order."""
        return any(isinstance(action, kind) for action in self.step.actions)

    @property
    def stage(self) -> str:
        """The stage that a leader comes to by this step, "" when it comes to none."""
        led, was = self.after.open.leading, self.before.open.leading
        if led is None or (was is not None and (was.stage, was.ballot) == (led.stage, led.ballot)):
            return ""
        return led.stage


def expect(is_true: bool, promise: str) -> None:
    """Raises Violation."""
    if not is_true:
        raise Violation(f"not so: {promise}")


@contextmanager
def replaced(target: object, **methods: object) -> Iterator[None]:
    """Other methods for the time being."""
    before = {name: getattr(target, name) for name in methods}
    try:
        for name, method in methods.items():
            setattr(target, name, method)
        yield
    finally:
        for name, method in before.items():
            setattr(target, name, method)


@dataclass
class Scene:
    """One scripted run."""

    world: World
    chooser: random.Random
    hooks: list[Callable[[Seen], None]] = field(default_factory=list)
    switches: Counter[str] = field(default_factory=Counter)
    """Changes of lineage, by node."""

    @property
    def unit(self) -> UnitName:
        """The unit whose machines the hooks see: the spine."""
        return self.world.layout.spine

    def __post_init__(self) -> None:
        self.hooks.append(self._count_switches)

    def _count_switches(self, seen: Seen) -> None:
        if (
            isinstance(seen.event, Switched)
            and seen.before.tree.path(seen.before.link.commit, seen.after.link.commit) is None
        ):
            self.switches[seen.node.name] += 1

    # --- who --------------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """All nodes, in the order in which they were made."""
        return self.world.nodes

    def node(self, peer: PeerId) -> Node:
        """The node with this id."""
        return next(node for node in self.nodes if node.peer == peer)

    def state(self, node: Node) -> RoundState:
        """Its round machine."""
        if node.service is None:
            raise Violation(f"{node.name} never ran")
        return node.service.state

    def opener(self) -> Node:
        """The first opener of the round on the newest head."""
        link = self.state(max(self.world.live_nodes(), key=lambda node: node.index)).link
        return self.node(first_opener(RUN_ID, link.unit, link.index, link.roster))

    def tie_holder(self, nodes: Sequence[Node]) -> Node:
        """The roster of which half is a quorum."""
        return self.node(tie_holder(RUN_ID, [node.peer for node in nodes]))

    def without(self, *nodes: Node) -> list[Node]:
        """Everybody else who runs."""
        return [node for node in self.world.live_nodes() if node not in nodes]

    # --- what happens -----------------------------------------------------------------------------------------------------

    def boot(self, *nodes: Node) -> None:
        """Start these."""
        for node in nodes:
            self.world.boot(node)

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await self.world.swarm.timers.sleep(seconds)

    def when(self, is_it: Callable[[Seen], bool], do: Callable[[Seen], None] = lambda seen: None) -> trio.Event:
        """Do it at the first step that is the one, before its orders are performed; the event tells when it was done."""
        happened = trio.Event()

        def look(seen: Seen) -> None:
            if not happened.is_set() and is_it(seen):
                happened.set()
                self.hooks.remove(look)
                do(seen)

        self.hooks.append(look)
        return happened

    async def happened(self, event: trio.Event, what: str, within_s: float = 120.0) -> None:
        """Until it did, and not a moment longer."""
        with trio.move_on_after(within_s):
            await event.wait()
        expect(event.is_set(), f"{what} within {within_s:.0f} s")

    @contextmanager
    def cut(self, *sides: Sequence[Node], both_ways: bool = True) -> Iterator[None]:
        """Nothing passes between any two of these sides; one way: from the first to the second."""
        peers = [[node.peer for node in side] for side in sides]
        pairs = [(one, two) for i, one in enumerate(peers) for two in peers[i + 1 :]]
        self.world.trace.add(f"cut {' | '.join(' '.join(node.name for node in side) for side in sides)}")
        for one, two in pairs:
            self.world.swarm.cut(one, two, both_ways=both_ways)
        try:
            yield
        finally:
            for one, two in pairs:
                self.world.swarm.mend(one, two, both_ways=both_ways)
            self.world.trace.add("the cut heals")

    @contextmanager
    def held(self, senders: Sequence[Node], receivers: Sequence[Node]) -> Iterator[Callable[[], None]]:
        """Messages from these to those are delayed until they are let go, or until the end of the block."""
        swarm, waiting = self.world.swarm, list[Callable[[], None]]()
        real = swarm.carry
        ways = {(one.peer, other.peer) for one in senders for other in receivers}

        def carry(sender: PeerId, receiver: PeerId, num_bytes: int, arrive: Callable[[], None]) -> None:
            if (sender, receiver) in ways:
                waiting.append(lambda: real(sender, receiver, num_bytes, arrive))
            else:
                real(sender, receiver, num_bytes, arrive)

        def let_go() -> None:
            ways.clear()
            for message in waiting:
                message()
            waiting.clear()

        with replaced(swarm, carry=carry):
            try:
                yield let_go
            finally:
                let_go()

    @contextmanager
    def thin(self, senders: Sequence[Node], receivers: Sequence[Node], bytes_per_s: float) -> Iterator[None]:
        """Bulk from these to those comes at this pace; messages do not wait behind it."""
        real = self.world.swarm.frame_delay_s
        ways = {(one.peer, other.peer) for one in senders for other in receivers}

        def frame_delay_s(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
            delay_s, is_reset = real(sender, receiver, num_bytes)
            return delay_s + (num_bytes / bytes_per_s if (sender, receiver) in ways else 0.0), is_reset

        with replaced(self.world.swarm, frame_delay_s=frame_delay_s):
            yield

    # --- what must hold ---------------------------------------------------------------------------------------------------

    async def until(self, is_true: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
        """Until it is so, or a violation."""
        await self.world.wait_for(is_true, within_s, what)

    def heads(self, nodes: Sequence[Node] | None = None) -> set[CommitId | None]:
        """The heads of these."""
        return {node.head for node in (self.world.live_nodes() if nodes is None else nodes)}

    async def rounds(self, number: int, nodes: Sequence[Node] | None = None, within_s: float = 120.0) -> None:
        """Until so many more commits are applied at one of these."""
        some = self.nodes if nodes is None else nodes
        goal = max(node.index for node in some) + number
        await self.until(lambda: max(node.index for node in some) >= goal, f"round {goal}", within_s)

    async def agreement(self, nodes: Sequence[Node] | None = None, within_s: float = 120.0) -> None:
        """Until these stand on one head."""

        def is_one() -> bool:
            heads = self.heads(nodes)
            return len(heads) == 1 and None not in heads

        await self.until(is_one, "agreement", within_s)

    async def everybody_votes(self) -> None:
        """Until all who run stand on one head, and its roster is all of them."""
        peers = {node.peer for node in self.world.live_nodes()}

        def is_full() -> bool:
            nodes = self.world.live_nodes()
            rosters = [set(self.state(node).link.roster) for node in nodes]
            return len(self.heads()) == 1 and None not in self.heads() and all(roster == peers for roster in rosters)

        await self.until(is_full, "a roster of everybody", 5 * self.world.profile.longest_interval_s)

    async def back(self, *nodes: Node, within: int = BACK_WITHIN, within_s: float = 120.0) -> None:
        """Until these, who returned now, stand where the others do, and these did not commit more rounds than that meanwhile."""
        others = self.without(*nodes)
        before = max(node.index for node in others)

        def are_back() -> bool:
            return None not in self.heads(nodes) and self.heads(nodes) <= self.heads(others)

        await self.until(are_back, f"the return of {' '.join(node.name for node in nodes)}", within_s)
        rounds = max(node.index for node in others) - before
        expect(rounds <= within, f"back within {within} rounds; it took {rounds}")

    async def together(self) -> None:
        """The end: all who run agree, then commit a round together, no token is lost, and of all lineages that there were they are
        on the one that is preferred.
        """
        await come_together(self.world)
        head = self.world.live_nodes()[0].head
        if head is not None:
            is_there = partial(self.world.is_there, self.unit)
            self.world.observed.check_preferred(head, self.world.target_tokens, is_there)

    def lineage(self, node: Node) -> list[KnownCommit]:
        """The commits that it stands on."""
        return self.world.observed.lineage(node.head) if node.head is not None else []

    def work_class(self, node: Node, fork: ChainLink) -> int:
        """The work of its lineage after this commit, as it counts when lineages are compared."""
        links = (link_of(encode_record(known.record)) for known in self.lineage(node)[fork.index :])
        return work_class(fork, work_after(fork, links))

    def is_followed(self, commit: CommitId) -> bool:
        """Whether all who run stand on this commit or on one after it."""
        return all(
            commit == node.head or any(known.parent == commit for known in self.lineage(node))
            for node in self.world.live_nodes()
        )

    def lone_rosters(self) -> list[frozenset[Node]]:
        """The maker of each lone commit so far."""
        commits = self.world.observed.commits.values()
        return [frozenset(self.node(peer) for peer in known.record.roster) for known in commits if known.record.lone]


# --- the collection -----------------------------------------------------------------------------------------------------------

Script = Callable[[Scene], Awaitable[None]]

CALM = Profile("scenario", round_s=6.0, heartbeat_s=1.0, converge_s=120.0)
"""Rounds every six seconds, the patience at its least."""


@dataclass(frozen=True)
class Scenario:
    """A script and the swarm that it begins with."""

    name: str
    script: Script
    num_peers: int
    profile: Profile = CALM
    num_late: int = 0
    """Of the peers, how many are no founders and are started by the script."""

    is_even: bool = False
    """All train at the same speed."""

    num_seeds: int = 1
    """How many of its seeds belong to the tests."""

    loses_nothing: bool = False
    """Nobody dies and no disk is lost, so that every token that was trained is counted or ready in the end."""


SCENARIOS: dict[str, Scenario] = {}


def add(scenario: Scenario) -> None:
    """Put a scenario into the collection."""
    SCENARIOS[scenario.name] = scenario


def scenario(
    num_peers: int,
    profile: Profile = CALM,
    *,
    num_late: int = 0,
    is_even: bool = False,
    num_seeds: int = 1,
    loses_nothing: bool = False,
) -> Callable[[Script], Script]:
    """Put a script into the collection, under its own name."""

    def put(script: Script) -> Script:
        name = getattr(script, "__name__").replace("_", "-")  # noqa: B009 - a callable
        add(Scenario(name, script, num_peers, profile, num_late, is_even, num_seeds, loses_nothing))
        return script

    return put


@contextmanager
def _watched(scenes: list[Scene]) -> Iterator[None]:
    """Show the scene every step of every round machine."""
    real = core.step

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real(before, event, now_s)
        scene = scenes[0]
        if before.config.unit != scene.unit:
            return taken
        seen = Seen(scene.node(before.config.me.peer), before, event, taken)
        for hook in list(scene.hooks):
            hook(seen)
        return taken

    with replaced(core, step=step):
        yield


def play(reported: Scenario, seed: int, *, keeps_trace: bool = False) -> Outcome:
    """One scenario with one seed, to its end."""
    outcome, scenes = Outcome(seed), list[Scene]()
    try:
        with _watched(scenes):
            virtual_time.run(seed, partial(_play, reported, outcome, scenes, keeps_trace))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.error = summary(error)
    return outcome


async def _play(reported: Scenario, outcome: Outcome, scenes: list[Scene], keeps_trace: bool) -> None:
    async with trio.open_nursery() as nursery:
        world = World(
            outcome.seed, nursery, reported.num_peers, reported.num_peers - reported.num_late, reported.profile
        )
        if keeps_trace:
            world.trace.lines = outcome.lines
        outcome.faults = world.faults
        nursery.start_soon(world.host.serve)
        scene = Scene(world, random.Random(f"scenario {outcome.seed}"))
        scenes.append(scene)
        for node in scene.nodes if reported.is_even else ():
            node.tokens_per_s = reported.profile.tokens_per_s
        scene.boot(*scene.nodes[: reported.num_peers - reported.num_late])
        try:
            await scene.rounds(1, within_s=10 * reported.profile.longest_interval_s)
            await reported.script(scene)
            await scene.together()
            if reported.loses_nothing:
                expect(set(world.tokens) <= {MINTED, COUNTED, READY}, f"no work is lost; {dict(world.tokens)}")
        finally:
            outcome.rounds = world.rounds()
            outcome.virtual_s = trio.current_time()
            outcome.trace = world.trace.digest()
        nursery.cancel_scope.cancel()
