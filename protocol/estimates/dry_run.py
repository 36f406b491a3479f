"""The output of a dry run: every setting with its origin, and the estimates. Pure: rows in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.estimates.estimates import run_size
from protocol.estimates.unit_disk import disk_phrase
from protocol.run.host_sections import has_loss_gate
from protocol.run.manifest import RunConfig
from protocol.run.source_section import SourceSection
from protocol.run.traffic import needed_mbit_per_s, round_bytes
from protocol.tables import in_bytes, printable, whole

END: Final = "nothing was started, written or used up"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `origin`: a flag, a variable, a file, or "default"."""

    name: str
    origin: str
    value: object


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected amount of one thing, with units."""

    name: str
    expected: str


def setting_lines(settings: Sequence[Setting]) -> list[str]:
    """One line a setting: name, value, and its origin in brackets. Nothing is cut off: paths must stay readable."""
    width = max((len(setting.name) for setting in settings), default=0)
    return [f"  {s.name:<{width}}  {_value(s.value)}  ({printable(s.origin)})" for s in settings]


def estimate_lines(estimates: Sequence[Estimate]) -> list[str]:
    """One line an estimate; one without a name continues the line before."""
    width = max((len(estimate.name) for estimate in estimates), default=0)
    return [f"  {e.name:<{width}}  {printable(e.expected)}" for e in estimates]


def run_settings(config: RunConfig, file: str) -> Iterable[Setting]:
    """All of a run.toml, section by section, with keys that the file does not set."""
    for section_name in type(config).model_fields:
        section = getattr(config, section_name)
        if section is None:
            continue  # a section of other kinds of run
        tables = section if isinstance(section, tuple) else (section,)
        for table in tables:
            prefix = f"{section_name}.{table.name}" if isinstance(section, tuple) else section_name
            for name in type(table).model_fields:
                if name == "sources":
                    yield from _source_settings(getattr(table, name), file)
                    continue
                origin = file if name in table.model_fields_set else "default"
                yield Setting(f"{prefix}.{name}", origin, _told_value(config, table, name))


def _told_value(config: RunConfig, table: object, name: str) -> object:
    """The value of a key. Of those whose default follows from other keys, what follows."""
    match name:
        case "chunk_elements":
            return config.chunk_elements
        case "max_peers":
            return config.run.most_peers
        case "loss_gate":
            return has_loss_gate(config.round, config.admission, config.run.shards)
        case _:
            value: object = getattr(table, name)
            return value


def _source_settings(sources: Sequence[SourceSection], file: str) -> Iterable[Setting]:
    """The keys that the sections of a mixture set."""
    for number, source in enumerate(sources, 1):
        for name in type(source).model_fields:
            if name in source.model_fields_set:
                yield Setting(f"data.source {number}: {name}", file, getattr(source, name))


def traffic_estimates(run: RunConfig, *, reduces: bool) -> tuple[Estimate, ...]:
    """The cost of rounds for one peer: of a round with as many peers as the run takes, of a day and of the whole run."""
    size, members, interval_s = run_size(run), run.run.max_members, run.round.longest_interval_s
    up_and_down = round_bytes(size.update_bytes, size.result_bytes, members, reduces=reduces)
    codecs = (
        run.round.codec if run.result_codec == run.round.codec else f"{run.round.codec}, results {run.result_codec}"
    )
    needed = needed_mbit_per_s(max(up_and_down), interval_s)
    return (
        Estimate("a round", f"{_both_ways(up_and_down, 1)}, with {members} peers ({codecs})"),
        Estimate(
            "", f"at least {needed:g} Mbit/s each way, or it is not over after the {interval_s:g} s that it may take"
        ),
        Estimate("a day", f"{_both_ways(up_and_down, size.slow_rounds_per_day)}, at a round every {interval_s:g} s;"),
        Estimate("", f"more where all peers together train over {whole(size.fast_tokens_per_s)} tokens/s"),
        Estimate("whole run", f"{_both_ways(up_and_down, size.fast_rounds)}, in {whole(size.fast_rounds)} rounds;"),
        Estimate("", "more where rounds are due before their target tokens are reached"),
    )


def turn_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """How many peers the run takes and a round takes of them; nothing where every peer is in every round."""
    peers, members = run.run.most_peers, run.run.max_members
    if peers == members:
        return ()
    told = f"up to {whole(peers)} at a time, and {members} in one round of one unit; those that waited longest go first"
    return (Estimate("peers", told),)


def round_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """For whom a round waits, and who outweighs whom, where that is not as in most runs."""
    rules, found = run.round, list[Estimate]()
    if rules.close_share < 1.0:
        share = f"a round waits for {rules.close_share:.0%} of its members and a quarter longer"
        found.append(Estimate("slow peers", f"{share}, and for all in one of {whole(rules.patient_every)}"))
    if not rules.weight_cap:
        told = "a member weighs as much as it says that it trained: one that lies outweighs all others"
        found.append(Estimate("trust", f"weight_cap = 0: {told}; for runs among friends"))
    if not rules.audit_share:
        told = "nobody computes others' sums again: one that sums falsely is never found"
        found.append(Estimate("audits", f"audit_share = 0: {told}; for runs among friends"))
    return tuple(found)


def disk_estimates(run: RunConfig, data: str) -> tuple[Estimate, ...]:
    """The disk of one peer, with its `data`, and the bytes that it writes there in a round and in a day."""
    size, interval_s = run_size(run), run.round.longest_interval_s
    a_day = in_bytes(size.write_bytes * size.slow_rounds_per_day)
    return (
        Estimate("disk", f"{disk_phrase(size.disk_bytes)}, and {data}"),
        Estimate(
            "", f"writes about {in_bytes(size.write_bytes)} a round, {a_day} a day at a round every {interval_s:g} s"
        ),
    )


def _both_ways(up_and_down: tuple[int, int], num_rounds: int) -> str:
    up_bytes, down_bytes = up_and_down
    return f"up {in_bytes(up_bytes * num_rounds)}, down {in_bytes(down_bytes * num_rounds)}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "not given"
    return printable(value) if value != "" else '""'
