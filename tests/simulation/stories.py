"""Stories: a swarm, its faults drawn from the seed, and the end at which everything has healed and all must agree."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.ids import UnitName
from protocol.rounds.messages.bounds import MAX_MEMBERS
from tests.simulation import transitions, virtual_time
from tests.simulation.credentials import in_seconds
from tests.simulation.faults import FAULTS, restart
from tests.simulation.invariants import Violation
from tests.simulation.liars import keep_up, look_at_convictions, lying
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.sharing import shared_decoding
from tests.simulation.swarm import World

ROUNDS_WITHIN_S = 900.0
RETURN = 0.7
"""Share of those who come that were here before."""

BESIDE = 0.3
"""Share of the stories in which a kind of fault comes on top of what is drawn."""

COLLECT_EVERY = 8
"""Intervals of turnover, in which up to two and a half times all peers go: less than a gigabyte where they are 128."""

TOGETHER_WITHIN = 2.0
"""A round of everybody comes within so many times `converge_s` of a profile."""

TURNS = 3
"""Of more peers than a round may have each is counted within so many times the rounds that it takes to count all once.
Half of a round's members hand on the vote; of the others those come first whose work waits longest, and who is a quarter as
fast has to wait until that is more than what the fast ones trained since they were counted.
"""


@dataclass(frozen=True)
class Options:
    """The settings that a run of stories may override."""

    peers: int | None = None
    hours: float | None = None
    keeps_trace: bool = False


@dataclass
class Outcome:
    """A story's outcome; `error` is empty when every promise was kept."""

    seed: int
    error: str = ""
    rounds: int = 0
    virtual_s: float = 0.0
    trace: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    turnover: list[float] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def simulate(seed: int, profile: Profile = PROFILES["default"], options: Options = Options()) -> Outcome:
    """Tell one story to its end."""
    outcome = Outcome(seed)
    try:
        days = in_seconds() if profile.has_credentials else nullcontext()
        with transitions.counted(outcome.reached), shared_decoding(), days:
            virtual_time.run(seed, partial(_tell, outcome, profile, options), profile.grain_s)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.error = summary(error)
    return outcome


def summary(error: BaseException) -> str:
    """The errors in a group, one after another, violations first."""
    leaves: list[BaseException] = []

    def collect(one: BaseException) -> None:
        if isinstance(one, BaseExceptionGroup):
            for inner in one.exceptions:
                collect(inner)
        else:
            leaves.append(one)

    collect(error)
    leaves.sort(key=lambda leaf: not isinstance(leaf, Violation))
    return " | ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves[:3])


async def _tell(outcome: Outcome, profile: Profile, options: Options) -> None:
    chooser = random.Random(f"story {outcome.seed}")
    num_peers = options.peers or chooser.randint(*profile.num_peers)
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            world = World(outcome.seed, nursery, num_peers, num_peers, profile)
            if options.keeps_trace:
                world.trace.lines = outcome.lines
            stack.enter_context(lying(world))
            outcome.faults, outcome.turnover, outcome.tokens = world.faults, world.turnover, world.tokens
            nursery.start_soon(world.host.serve)
            for node in world.nodes:
                world.boot(node)
            if world.liars:
                nursery.start_soon(keep_up, world)
            try:
                if profile.turnover:
                    await _hours(world, chooser, options.hours or profile.hours)
                else:
                    await _faults(world, chooser)
                await _end(world)
                look_at_convictions(world)
            finally:
                outcome.rounds = world.rounds()
                outcome.virtual_s = trio.current_time()
                world.trace.add(f"{world.swarm.num_messages} messages, {sum(outcome.reached.values())} transitions")
                outcome.trace = world.trace.digest()
            nursery.cancel_scope.cancel()


# --- what happens -------------------------------------------------------------------------------------------------------------


async def _faults(world: World, chooser: random.Random) -> None:
    """Faults side by side, until they have passed and enough rounds are done."""
    profile = world.profile
    kinds = [kind for kind in profile.weights if kind in FAULTS]
    weights = [profile.weights[kind] for kind in kinds]
    drawn = chooser.choices(kinds, weights, k=chooser.randint(*profile.num_faults))
    beside = random.Random(f"beside {world.seed}")
    drawn += [kind for kind in profile.beside if beside.random() < BESIDE]
    async with trio.open_nursery() as nursery:
        for number, kind in enumerate(drawn):
            at_s, lasts_s = chooser.uniform(0.0, profile.spread_s), chooser.uniform(*profile.fault_s)
            own = random.Random(f"fault {world.seed}/{number}")
            nursery.start_soon(_later, world, at_s, partial(FAULTS[kind], world, own, lasts_s))
    await _until(world, lambda: world.rounds() >= profile.min_rounds, ROUNDS_WITHIN_S)


async def _later(world: World, at_s: float, fault: Callable[[], object]) -> None:
    await world.swarm.timers.sleep(at_s)
    await fault()  # type: ignore[misc]


async def _until(world: World, is_true: Callable[[], bool], within_s: float) -> None:
    """Wait, but let it go: what must happen is asked after everything has healed."""
    deadline_s = trio.current_time() + within_s
    while not is_true() and trio.current_time() < deadline_s and world.live_nodes():
        await world.swarm.timers.sleep(1.0)


async def _hours(world: World, chooser: random.Random, hours: float) -> None:
    """Peers come and go, up to a share of them between two rounds, and each of these rounds resolves."""
    profile = world.profile
    num_peers = world.num_peers
    begin_s, stop_s = trio.current_time(), hours * 3600.0
    while begin_s < stop_s:
        index = world.rounds()
        num_changed = chooser.randint(0, int(profile.turnover * num_peers))
        world.turnover.append(num_changed / num_peers)
        moments = [
            (chooser.uniform(0.0, profile.longest_interval_s), change)
            for change in (_go, _come)
            for _ in range(num_changed)
        ]
        for at_s, change in sorted(moments, key=lambda moment: moment[0]):
            await world.swarm.timers.sleep(max(0.0, begin_s + at_s - trio.current_time()))
            change(world, chooser)
        begin_s += profile.longest_interval_s
        if len(world.turnover) % COLLECT_EVERY == 0:
            virtual_time.collect_garbage()
        await world.swarm.timers.sleep(max(0.0, begin_s - trio.current_time()))
        await world.wait_for(partial(_is_above, world, index), profile.longest_interval_s, f"round {index + 1}")


def _is_above(world: World, index: int) -> bool:
    return world.rounds() > index


def _go(world: World, chooser: random.Random) -> None:
    """A peer leaves, or dies."""
    live = world.live_nodes()
    if len(live) <= 2:
        return
    node, how = chooser.choice(live), chooser.choice(("leave", "crash"))
    world.happened(how, node.name)
    if how == "leave":
        node.leave()
    else:
        node.crash()


def _come(world: World, chooser: random.Random) -> None:
    """One who went comes back, or somebody new comes."""
    if not world.has_room():
        return
    gone = [node for node in world.nodes if not node.is_up]
    if gone and chooser.random() < RETURN:
        node = chooser.choice(gone)
        world.happened("restart", node.name)
    else:
        node = world.add_node()
        world.happened("join", node.name)
    world.boot(node)


# --- the end ------------------------------------------------------------------------------------------------------------------


async def _end(world: World) -> None:
    """Everything heals; all live nodes come to one head and one state, and then commit a round together. The peers that are away in a
    story with turnover come back as far as there is room: in a day as many crash for good as it has peers.
    """
    world.trace.add("everything heals")
    for node in world.nodes:
        if world.has_room():
            restart(world, node)
    await come_together(world)
    profile = world.profile
    await world.wait_for(
        lambda: world.rounds() >= profile.min_rounds or profile.turnover > 0, ROUNDS_WITHIN_S, "rounds"
    )


async def come_together(world: World) -> None:
    """All live nodes come to one head and one state, and then commit a round together; no token is lost."""
    profile = world.profile
    await world.wait_for(partial(agree, world), profile.converge_s, "agreement")
    _check_tokens(world)
    indices = {unit: max(node.index_of(unit) for node in world.nodes) for unit in world.layout.units}

    def is_together(unit: UnitName) -> bool:
        """A later round on the common chain of a unit counts every live holder, and all hold it; where they are more than a round may
        have, later rounds count each of them.
        """
        holders = world.holders(unit)
        head = holders[0].head_of(unit) if holders else None
        if head is None:
            return not holders
        everybody = {node.peer for node in holders}
        waiting = set(everybody)
        for commit in reversed(world.observed_of[unit].after(head, indices[unit])):
            counted = {entry.peer for entry in commit.record.contributors}
            if everybody <= counted:
                return True
            if len(everybody) > MAX_MEMBERS:
                waiting -= counted
        return not waiting

    def are_together() -> bool:
        # a wrong state is seen when a later commit attests it: seed 129 of the recovery stories ended before that
        is_sound = not any(node.is_rotten for node in world.live_nodes())
        are_counted = is_sound and agree(world) and all(is_together(unit) for unit in world.layout.units)
        return are_counted and not world.host.is_ahead()

    await world.wait_for(are_together, _together_within_s(world), "a round of everybody")
    # what follows is judged at this moment: all stand together, and the rounds go on with the first wait
    world.host.check()
    check_spine(world)
    _check_tokens(world)
    for node in world.honest_nodes():
        for unit, service in node.services.items():
            head = node.head_of(unit)
            if head is not None:
                world.observed_of[unit].hold(service.chain.links, head, service.chain.root)
    for node in world.honest_nodes():
        await node.check_disk()


def _together_within_s(world: World) -> float:
    profile, num_holders = world.profile, max(len(world.holders(unit)) for unit in world.layout.units)
    if num_holders <= MAX_MEMBERS:
        return profile.converge_s * TOGETHER_WITHIN
    return TURNS * math.ceil(num_holders / (MAX_MEMBERS // 2)) * profile.longest_interval_s


def check_spine(world: World) -> None:
    """All units stand with one lineage of the spine."""
    spine = world.layout.spine
    heads = [node.head_of(spine) for node in world.holders(spine)]
    if not heads or heads[0] is None:
        return
    followed = world.observed.lineage_ids(heads[0])
    for unit in world.layout.units[1:]:
        head = next((node.head_of(unit) for node in world.holders(unit)), None)
        if head is not None:
            world.observed_of[unit].check_stands_with(head, followed, partial(world.is_there, unit))


def agree(world: World) -> bool:
    """Whether all live holders of each unit stand on one head."""
    if not world.live_nodes() or any(node.is_up for node in world.older):
        return False
    for unit in world.layout.units:
        heads = {node.head_of(unit) for node in world.holders(unit)}
        if len(heads) > 1 or None in heads:
            return False
    return True


def _check_tokens(world: World) -> None:
    """Every token that any process life of anybody ever trained is counted, ready, or lost for a reason that is told."""
    world.tokens.clear()
    for unit in world.layout.units:
        head = next((node.head_of(unit) for node in world.holders(unit)), None)
        for node in world.nodes if head is not None else ():
            if node.peer in world.liars:
                continue
            if head is not None and unit in node.lives:
                world.tokens.update(node.lives[unit].account(head))
