"""/api/status as a few lines of text. Unknown or missing values are left out, never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from averaging.host.daemon_views import named_row, rows_of, shown_state
from coordinator.progress.run_core import is_here
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.messages.requests import NO_PART
from protocol.tables import bits, done_percent, duration, in_bytes, printable, several

PARTIAL_SHOWN: Final = 3
"""Most lane rounds that are shown of those that a stage lacks, newest first."""

MOST_NAME_WIDTH: Final = 40
"""Letters for which the column of names makes room. A longer name, with nickname and team, moves its own line alone."""


def _number(row: Mapping[str, object], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _loss_line(status: Mapping[str, object]) -> str:
    parts: list[str] = []
    for name, label in (("train_loss", "training"), ("heldout", "held-out"), ("prose", "prose")):
        rows = rows_of(status.get(name))
        if rows:
            each = _of_experts(status) if name == "heldout" else ""
            parts.append(f"{label} {bits(rows[-1].get('nats'))}{each}")
    parts = parts or ["not known yet"]
    marks = status.get("yardsticks")
    if isinstance(marks, dict):
        zlib, pairs = _number(marks, "zlib_bits_per_byte"), bits(marks.get("pairs_nats_per_byte"))
        parts.append(f"where zlib has {zlib:.3f}, and a table of byte pairs {pairs}")
    return "bits per byte: " + ", ".join(parts)


def _of_experts(status: Mapping[str, object]) -> str:
    """The newest held-out loss of each expert on its own documents; empty in a run without experts."""
    curves = status.get("heldout_experts")
    newest = {unit: rows_of(rows) for unit, rows in curves.items()} if isinstance(curves, dict) else {}
    shown = [f"{unit} {bits(rows[-1].get('nats'))}" for unit, rows in newest.items() if rows]
    return f" ({', '.join(shown)})" if shown else ""


def _peer_lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    width = min(MOST_NAME_WIDTH, max((len(named_row(row)) for row in rows), default=0))
    return [_peer_line(row, width) for row in rows]


def _peer_line(row: Mapping[str, object], width: int) -> str:
    seen = f"seen {duration(row.get('last_seen_s'))} ago"
    if not is_here(row):
        counted = f"{_number(row, 'tokens_counted'):,.0f} tokens counted"
        return f"  {named_row(row):<{width}} {shown_state(row):<12} {counted}, {seen}"
    loss = row.get("loss")
    said = f", {bits(loss)} bits per byte" if isinstance(loss, (int, float)) else ""
    speed = f"{_number(row, 'tokens_per_s'):>8,.0f} tokens/s"
    return f"  {named_row(row):<{width}} {shown_state(row):<12} {speed}{said}, {seen}"


def _more_lines(status: Mapping[str, object], num_shown: int) -> list[str]:
    more = int(_number(status, "num_peers")) - num_shown
    return [f"  and {more} more: potluck peers"] if more > 0 else []


def _away_lines(status: Mapping[str, object]) -> list[str]:
    num_banned = sum(row.get("is_banned") is True for row in rows_of(status.get("away")))  # these are told above
    number = int(_number(status, "num_away")) - num_banned
    return (
        [f"  and {number} that contributed and {'is' if number == 1 else 'are'} away: potluck peers"] if number else []
    )


def named(names: Mapping[object, object], peer: object) -> str:
    """The name of a peer, also of one that the host has not heard."""
    return str(names.get(peer) or peer_name(PeerId(str(peer))))


def _round_line(row: Mapping[str, object], names: Mapping[object, object]) -> str:
    if row.get("members") == []:
        number = _number(row, "index")
        return f"last round {number:.0f}: the host took the run back to round {number - 1:.0f}; nobody is counted"
    weights = row.get("weights")
    shares = weights.items() if isinstance(weights, dict) else ()
    members = ", ".join(f"{named(names, peer)} {100 * share:.0f}%" for peer, share in shares)
    omitted = [each for each in rows_of(row.get("omitted")) if each.get("reason") != NO_PART]
    left_out = "; left out: " + ", ".join(f"{named(names, o.get('peer'))} ({o.get('reason')})" for o in omitted)
    lost = _number(row, "lost")
    no_room = f"; {lost:.1%} of the mean had no room" if lost else ""
    disagreed = [f"; {named(names, each.get('peer'))}: {each.get('reason')}" for each in rows_of(row.get("disagreed"))]
    return f"last round {row.get('index')}: {members}{left_out if omitted else ''}{''.join(disagreed)}{no_room}"


def _missing_line(row: Mapping[str, object]) -> str:
    asked = _number(row, "from_index")
    span = (
        f"rounds {asked:.0f} to {row.get('index')}"
        if 0 < asked < _number(row, "index")
        else f"round {row.get('index')}"
    )
    return f"missing: {span} of {row.get('name')}, for {duration(row.get('missing_s'))}: {row.get('reason')}"


def _stage_line(row: Mapping[str, object]) -> str:
    could = _number(row, "could_tokens_per_s")
    shown = f"{_number(row, 'serving'):.0f} serve, {_number(row, 'spare'):.0f} to spare; "
    shown += f"{_number(row, 'tokens_per_s'):,.0f} tokens/s" + (f" of {could:,.0f} that it could do" if could else "")
    return f"{row.get('unit')}: {shown}{'; the bottleneck' if row.get('bottleneck') else ''}"


def _lane_line(row: Mapping[str, object], names: Mapping[object, object]) -> str:
    members = row.get("members")
    stages = [stage for stage in members if isinstance(stage, list)] if isinstance(members, list) else []
    shown = [" + ".join(named(names, peer) for peer in stage) or "nobody" for stage in stages]
    return f"lane {row.get('lane')}: {', '.join(shown)}; {_number(row, 'tokens_per_s'):,.0f} tokens/s"


def _partial_line(row: Mapping[str, object]) -> str:
    lacking = row.get("lacking")
    where = ", ".join(map(str, lacking)) if isinstance(lacking, list) else "a stage"
    shown = "no commit there counts it, and the other stages count one more round of this lane"
    return f"lane {row.get('lane')}: round {row.get('round')} is not at {where}: {shown}"


def _sources_line(rows: Sequence[Mapping[str, object]]) -> str:
    """Each source's share of the text that peers have read."""
    total = sum(_number(row, "tokens") for row in rows)
    shares = (f"{row.get('name')} {_number(row, 'tokens') / total:.0%}" for row in rows if total)
    return f"text read: {', '.join(shares) or 'none yet'}"


def _energy_line(energy: Mapping[object, object]) -> str:
    """The energy of the peers that have a meter, with the carbon of what is known."""
    row = {str(name): value for name, value in energy.items()}
    parts = [f"{_number(row, 'kwh'):.3g} kWh by {several(_number(row, 'num_peers'), 'peer')} with a meter"]
    if row.get("joules_per_token") is not None:
        parts.append(f"{_number(row, 'joules_per_token'):.3g} J a token")
    if row.get("carbon_kg") is not None:
        share = _number(row, "carbon_share")
        of_it = f" for {share:.0%} of it" if share < 1.0 else ""
        parts.append(f"{_number(row, 'carbon_kg'):.3g} kg of CO2{of_it}")
    return f"energy: {', '.join(parts)}"


def _bytes_line(units: Mapping[object, object]) -> str:
    """Bytes that the peers moved for each unit since they started."""
    moved = [(unit, row) for unit, row in units.items() if isinstance(row, dict)]
    shown = [
        f"{unit} {in_bytes(row.get('bytes_up'))} up, {in_bytes(row.get('bytes_down'))} down" for unit, row in moved
    ]
    return f"moved by the peers: {'; '.join(shown)}"


def _task_line(task: Mapping[str, object]) -> str:
    """A task's newest whole score, the parts that the newest round lacks, and what a blind guess would have."""
    points = rows_of(task.get("points"))
    whole = [point for point in points if point.get("acc") is not None]
    shown = "not measured yet"
    if task.get("kind") == "prompts":
        shown = f"answers of round {task.get('answered_index')}" if task.get("answers") else "no answers yet"
    elif whole:
        acc, by_length = (100 * _number(whole[-1], name) for name in ("acc", "acc_norm"))
        chance = 100 * _number(task, "chance")
        shown = (
            f"{acc:.1f}% right, {by_length:.1f}% for each byte, at round {whole[-1].get('index')}; chance {chance:.1f}%"
        )
    missing = points[-1].get("missing") if points else None
    if isinstance(missing, list) and missing:
        parts = ", ".join(map(str, missing))
        shown += f"; of round {points[-1].get('index')} part {parts} of {task.get('parts')} is missing"
    return f"{task.get('name')}: {shown}"


def _push_line(push: Mapping[str, object]) -> str:
    """The newest checkpoint that was pushed, and why a newer one was not."""
    shown = f"round {push.get('index')} is verified there" if push.get("pushed") else "nothing is there yet"
    if push.get("reason"):
        shown += f"; failed: {push['reason']}; again in {duration(push.get('again_in_s'))}"
    return f"checkpoints pushed to {push.get('url')}: {shown}"


def _unit_line(row: Mapping[str, object], names: Mapping[object, object]) -> str:
    holders = row.get("holders")
    shown = [named(names, peer) for peer in holders] if isinstance(holders, list) else []
    more = int(_number(row, "num_holders")) - len(shown)
    held_by = ", ".join([*shown, f"{more} more"] if more > 0 else shown)
    nobody = f"frozen: {row.get('why')}" if row.get("frozen") else "held by nobody at the moment"
    where = f"held by {held_by}" if held_by else nobody
    return f"{row.get('unit')}: round {row.get('index')}, {where}"


def headline(status: Mapping[str, object]) -> str:
    """The run and its phase; why it does not train, where it does not."""
    phase, reason = status.get("phase"), status.get("reason")
    if waiting := status.get("waiting"):
        phase, reason = "waiting", waiting
    return f"{status.get('run')}: {phase}" + (f": {reason}" if phase != "training" else "")


def progress(status: Mapping[str, object]) -> str:
    """The round, the tokens and the time left."""
    done, target, left_s = _number(status, "total_tokens"), _number(status, "target_total_tokens"), status.get("eta_s")
    if status.get("waiting"):
        return f"round {status.get('index')}, {done:,.0f} of {target:,.0f} tokens ({done_percent(done, target)})"
    left = "time left: not known yet" if left_s is None else f"{duration(left_s)} to go"
    end = "done" if status.get("phase") == "finished" else left
    return f"round {status.get('index')}, {done:,.0f} of {target:,.0f} tokens ({done_percent(done, target)}), {end}"


def alerts(status: Mapping[str, object]) -> list[str]:
    """Each thing that needs the host's eye, in one sentence; empty while all is well."""
    found = [str(status["trouble"])] if status.get("trouble") else []
    found += [_missing_line(row) for row in rows_of(status.get("missing"))]
    found += [
        f"{row.get('unit')} is frozen: {row.get('why')}" for row in rows_of(status.get("units")) if row.get("frozen")
    ]
    if apart := status.get("apart"):
        found.append(str(apart))
    if forks := int(_number(status, "forks")):
        found.append(f"the run goes on in {forks + 1} branches until they meet: some peers cannot reach the others")
    if bans := int(_number(status, "bans")):
        banned = status.get("banned")
        names = f": {', '.join(map(str, banned.values()))}" if isinstance(banned, dict) and banned else ""
        found.append(f"{several(bans, 'peer')} banned{names}")
    return [printable(text) for text in found]


def status_lines(status: Mapping[str, object]) -> Sequence[str]:
    """The run in a few lines: what is unusual, progress, loss, peers, last round, newest checkpoint."""
    peers, rounds, checkpoints = (rows_of(status.get(name)) for name in ("peers", "rounds", "checkpoints"))
    lines = [
        headline(status),
        *alerts(status),
        progress(status),
        _loss_line(status),
        several(_number(status, "num_peers"), "peer"),
        *_peer_lines(peers),
        *_more_lines(status, len(peers)),
        *_away_lines(status),
    ]
    if status.get("restarted"):
        lines.append(f"the host {status['restarted']}")
    names = {row.get("peer"): row.get("name") for row in peers}
    if rounds:
        lines.append(_round_line(rounds[-1], names))
    if units := rows_of(status.get("units")):
        lines.extend(_unit_line(row, names) for row in units)
    lines.extend(_stage_line(row) for row in rows_of(status.get("stages")))
    lanes = rows_of(status.get("lanes"))
    lines.extend(_lane_line(row, names) for row in lanes)
    if (more := int(_number(status, "num_lanes")) - len(lanes)) > 0:
        lines.append(f"and {several(more, 'more lane')}")
    lines.extend(_partial_line(row) for row in rows_of(status.get("partial_lanes"))[-PARTIAL_SHOWN:])
    if sources := rows_of(status.get("sources")):
        lines.append(_sources_line(sources))
    if isinstance(moved := status.get("unit_bytes"), dict) and moved:
        lines.append(_bytes_line(moved))
    if isinstance(energy := status.get("energy"), dict) and energy:
        lines.append(_energy_line(energy))
    lines.extend(_task_line(task) for task in rows_of(status.get("tasks")))
    if checkpoints:
        lines.append(f"newest checkpoint: round {checkpoints[-1].get('index')} in {checkpoints[-1].get('path')}")
    if isinstance(push := status.get("push"), dict):
        lines.append(_push_line(push))
    if isinstance(words := status.get("page"), dict):
        lines.extend(f"{key}: {words[key]}" for key in ("description", "contact", "join") if key in words)
    # States, names and reasons come from other peers: their control characters must not reach the terminal.
    return [printable(line) for line in lines]
