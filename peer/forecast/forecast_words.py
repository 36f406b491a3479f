"""A forecast for people, as lines, and for scripts, as JSON values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peer.forecast.forecast_core import Conditions, Forecast
from peer.forecast.loss_law_core import BESIROGLU, CHINCHILLA
from peer.forecast.search_core import Candidate
from protocol.estimates.dry_run import Estimate
from protocol.estimates.estimates import SECONDS_PER_DAY
from protocol.grids import JOULES_PER_KWH
from protocol.tables import duration, in_bytes, least_duration, several, short_count, whole

_LAW: Final = f"{CHINCHILLA} ({BESIROGLU.name}), of DiLoCo by members (Charles et al. 2025) and local steps (Douillard et al. 2023)"
_LEAST_KWH: Final = 0.1
"""Below it in watt hours."""

_PLAIN_KWH: Final = 1000.0
"""From here on without digits after the point."""


def forecast_estimates(found: Forecast, conditions: Conditions) -> list[Estimate]:
    """The forecast, a line for each thing."""
    return [
        Estimate("model", f"{whole(found.num_values)} values, {whole(found.tokens)} tokens"),
        *_peers(found),
        *_together(found),
        _traffic(found),
        Estimate("memory", f"of a peer's machine about {in_bytes(found.beside_card_bytes)} beside its cards,"),
        Estimate("", f"or {in_bytes(found.machine_bytes)} where it trains on the CPU"),
        *_audits(found),
        Estimate("time", least_duration(found.days * SECONDS_PER_DAY)),
        *_energy(found, conditions),
        *_loss(found),
    ]


def candidate_lines(candidates: Sequence[Candidate], most: int) -> list[str]:
    """The best models of a search, a line each."""
    lines = []
    for each in candidates[:most]:
        found, model = each.found, each.run.model
        loss = f", loss {found.loss.nats:.3f}" if found.loss is not None else ""
        shape = f"dim {model.dim}, {several(model.num_layers, 'layer')}"
        time = least_duration(found.days * SECONDS_PER_DAY)
        lines.append(
            f"  {short_count(found.num_values):>7} values ({shape}), {short_count(found.tokens)} tokens, {time}{loss}"
        )
    return lines


def assumption_line(conditions: Conditions) -> str:
    """The assumptions of a plan, in one line."""
    link = f"{conditions.link.down:g}/{conditions.link.up:g} Mbit/s"
    return (
        f"assumed: cards of the table reach {conditions.mfu:.0%} of their peak, links of {link}, "
        f"{conditions.hours_a_day:g} h a day, {conditions.machine_watts:g} W beside the cards; options change each"
    )


def forecast_json(found: Forecast) -> dict[str, object]:
    """The forecast's numbers, with units in their names. Unknown ones are null."""
    speed, loss, energy = found.speed, found.loss, found.energy
    return {
        "num_values": found.num_values,
        "tokens": found.tokens,
        "members": speed.members,
        "tokens_per_s": speed.tokens_per_s,
        "flops_per_token": speed.flops_per_token,
        "days": found.days,
        "machine_bytes": found.machine_bytes,
        "beside_card_bytes": found.beside_card_bytes,
        "audit_bytes": found.audit_bytes,
        "day_up_bytes": found.day_up_bytes,
        "day_down_bytes": found.day_down_bytes,
        "kwh": energy.kwh if energy is not None else None,
        "cost": energy.cost if energy is not None else None,
        "carbon_kg": energy.carbon_kg if energy is not None else None,
        "joules_per_token": energy.kwh * JOULES_PER_KWH / found.tokens if energy is not None else None,
        "loss": None
        if loss is None
        else {"nats": loss.nats, "low": loss.low, "high": loss.high, "law": _LAW, "notes": list(loss.notes)},
        "rounds": {
            "round_s": speed.rounds.round_s,
            "exchange_s": speed.rounds.exchange_s,
            "tokens": speed.rounds.tokens,
            "local_steps": speed.rounds.local_steps,
            "up_bytes": speed.rounds.up_bytes,
            "down_bytes": speed.rounds.down_bytes,
            "lost_share": speed.rounds.lost_share,
        },
        "leaving_share": speed.leaving_share,
        "groups": [
            {
                "peers": each.group.text,
                "count": each.group.count,
                "fits": each.fits,
                "how": each.how,
                "tokens_per_s": each.tokens_per_s,
                "card_bytes": each.card_bytes,
                "usable_bytes": each.usable_bytes,
            }
            for each in speed.groups
        ],
        "notes": list(found.notes),
    }


def candidate_json(each: Candidate) -> dict[str, object]:
    """A model of a search and its forecast."""
    return {"model": each.run.model.model_dump(mode="json"), **forecast_json(each.found)}


def _in_kwh(kwh: float) -> str:
    if kwh < _LEAST_KWH:
        return f"{1000 * kwh:.3g} Wh"
    return f"{kwh:,.3g} kWh" if kwh < _PLAIN_KWH else f"{whole(kwh)} kWh"


def _peers(found: Forecast) -> list[Estimate]:
    lines = list[Estimate]()
    for each in found.speed.groups:
        speed = f"{whole(each.tokens_per_s)} tokens/s each" if each.fits else "cannot train it"
        lines.append(Estimate("" if lines else "peers", f"{each.group.text}: {speed}; {each.how}"))
    return lines


def _audits(found: Forecast) -> list[Estimate]:
    if not found.audit_bytes:
        return []
    return [
        Estimate("", f"and up to {in_bytes(found.audit_bytes)} more for audits of others' work, where that is free")
    ]


def _together(found: Forecast) -> list[Estimate]:
    speed, rounds = found.speed, found.speed.rounds
    members = f"{speed.members:.3g} at a time on average"
    lines = [Estimate("together", f"{whole(speed.tokens_per_s)} tokens/s over day and night, {members}")]
    if _is_one_round(found):
        lines.append(Estimate("rounds", "one: all tokens are trained within it"))
    elif rounds.exchange_s:
        lines.append(
            Estimate(
                "rounds",
                f"every {duration(rounds.round_s)}, of {whole(max(1.0, rounds.local_steps))} local steps; an exchange takes "
                f"{duration(rounds.exchange_s)}; {rounds.lost_share:.1%} of the time is lost to them",
            )
        )
    if speed.leaving_share:
        lines.append(
            Estimate("leaving", f"{speed.leaving_share:.1%} of the time is lost when peers leave and come back")
        )
    return lines


def _is_one_round(found: Forecast) -> bool:
    """Whether the run ends before its first round does, so that figures of more rounds would be of none."""
    return found.tokens <= found.speed.rounds.tokens


def _traffic(found: Forecast) -> Estimate:
    if _is_one_round(found):
        rounds = found.speed.rounds
        return Estimate("a round", f"up {in_bytes(rounds.up_bytes)}, down {in_bytes(rounds.down_bytes)} for each peer")
    return Estimate("a day", f"up {in_bytes(found.day_up_bytes)}, down {in_bytes(found.day_down_bytes)} for each peer")


def _energy(found: Forecast, conditions: Conditions) -> list[Estimate]:
    energy = found.energy
    if energy is None:
        return []
    parts = [_in_kwh(energy.kwh)]
    if energy.cost is not None and conditions.price_kwh is not None:
        parts.append(f"costs {energy.cost:,.2f} at {conditions.price_kwh:g} a kWh")
    if energy.carbon_kg is not None and conditions.g_per_kwh is not None:
        parts.append(f"{energy.carbon_kg:,.3g} kg of CO2 at {conditions.g_per_kwh:g} g a kWh")
    return [Estimate("energy", ", ".join(parts))]


def _loss(found: Forecast) -> list[Estimate]:
    if found.loss is None:
        return []
    loss = found.loss
    spread = f"{loss.nats:.2f} nats a token, between {loss.low:.2f} and {loss.high:.2f}"
    return [Estimate("loss", spread), Estimate("", f"by {_LAW}")]
