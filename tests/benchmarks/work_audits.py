"""`python -m tests.benchmarks.work_audits --json FILE [--quick]`: how well work done again tells honest work from other work.

Four real trainers of the product train a small decoder on Python's standard library, round after round, so that hardly any window is
read twice. Then each of them takes the steps of each other one again, as an auditor does. A fit is what the host makes of the finding:
about 1 for the assigned work, about 0 for other work. Work passes by the product's rule, with the median honest fit as the usual one.

Rows tell, for each codec and each share of a round's steps that is taken before its base is adopted: the fits of honest work and the
share of it that passes, and the same of lies. Lies are the work of another peer, a larger copy of it, the mean of others, and half of
the claimed steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from averaging.models.llama.config import LlamaConfig
from coordinator.policy.audited_work_core import KnownVerdict, passes
from peer.audits.work_audit_core import Finding
from protocol.host.work_rules import fit_of
from protocol.ids import CommitId
from protocol.kinds.codec_table import leaves_out
from protocol.run.training_sections import InnerSection
from tests.benchmarks.convergence import corpus
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.peer.audits.redone_world import NUM_PEERS, SIGNERS, Setting, World, contributed, lies

BENCH: Final = "work_audits"
CONTEXT: Final = 64
MODEL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=4, num_kv_heads=4, ffn_dim=128, context_tokens=CONTEXT)
INNER: Final = InnerSection(learning_rate=0.002, batch_tokens=4 * CONTEXT)
TEXT_BYTES: Final = 2_000_000
NUM_STEPS: Final = 32
NUM_ROUNDS: Final = 8
SHARES: Final = (0.0, 0.2, 0.5, 0.9)
DENSE: Final = ("int4", "e3m0")
BETA: Final = 0.95
LIES: Final = ("another's work", "a copy of another's, made larger", "the mean of others", "half of the steps")
MOST_WRONG: Final = 0.05
"""Of honest work that fails, and of lies that pass; one verdict decides nothing."""

Found = Mapping[str, Sequence[Finding]]


def settings(*, is_quick: bool) -> Sequence[tuple[str, Setting]]:
    """The compared settings, each with its name."""
    text = corpus().train[:TEXT_BYTES].tobytes().decode("utf-8", "replace")
    whole = Setting(MODEL, INNER, text, num_steps=NUM_STEPS, num_rounds=3 if is_quick else NUM_ROUNDS)
    found = [
        (f"int8, {share:.0%} before adoption", replace(whole, num_over=int(share * NUM_STEPS)))
        for share in (SHARES[:1] if is_quick else SHARES)
    ]
    if is_quick:
        return found
    dense = [(codec, replace(whole, codec=codec)) for codec in DENSE]
    sparse = replace(whole, codec="topk", feedback=BETA, num_rounds=3 * NUM_ROUNDS)
    return [*found, *dense, ("topk", sparse)]


def findings(world: World) -> Found:
    """Those of all pairs of an auditor and a contributor, by what was sent."""
    found: dict[str, list[Finding]] = {}
    for auditor in range(NUM_PEERS):
        control_N = world.control(auditor)
        for contributor in (each for each in range(NUM_PEERS) if each != auditor):
            redone_N = world.redone(auditor, contributor)
            told = lies(world, contributor, auditor)
            for name, sent_N in {"honest": world.deltas[contributor], **{lie: told[lie] for lie in LIES}}.items():
                found.setdefault(name, []).append(world.finding(sent_N, redone_N, control_N))
    return found


def passing(found: Sequence[Finding], usual: float) -> float:
    """The share of these that pass."""
    commit = CommitId(bytes(32))
    verdicts = [
        KnownVerdict(SIGNERS[0].peer_id, SIGNERS[1].peer_id, commit, each.gap, each.length_ratio, 0.0) for each in found
    ]
    return statistics.fmean(passes(each, usual) for each in verdicts)


def rows_of(name: str, found: Found, setting: Setting) -> list[Row]:
    """The fits of each kind of work, and the share that passes."""
    usual = statistics.median(fit_of(each.gap, each.length_ratio) for each in found["honest"])
    rows = list[Row]()
    for work, of_work in found.items():
        gaps, lengths = [each.gap for each in of_work], [each.length_ratio for each in of_work]
        fits = [fit_of(gap, length) for gap, length in zip(gaps, lengths, strict=True)]
        numbers: dict[str, object] = {
            "steps": setting.num_steps,
            "rounds": setting.num_rounds,
            "values": MODEL.model_dump(),
            "gaps": [round(min(gaps), 3), round(max(gaps), 3)],
            "lengths": [round(min(lengths), 3), round(max(lengths), 3)],
            "machine": machine(),
        }
        what = "honest work" if work == "honest" else work
        spread = {"best": round(max(fits), 3), "worst": round(min(fits), 3)}
        middle = round(statistics.median(fits), 3)
        rows.append(
            Row(BENCH, f"{name}: fit of {what}", middle, "fit", trials=len(fits), spread=spread, settings=numbers)
        )
        share = passing(of_work, usual)
        is_honest = work == "honest"
        target = f">= {1.0 - MOST_WRONG:g}" if is_honest else f"<= {MOST_WRONG:g}"
        met: bool | None = share >= 1.0 - MOST_WRONG if is_honest else share <= MOST_WRONG
        if leaves_out(setting.codec):  # the product audits no such run
            target, met = "", None
        metric = f"{name}: {what} that passes"
        rows.append(Row(BENCH, metric, round(share, 3), "share", None, None, target, met, len(gaps), settings=numbers))
    return rows


def main(arguments: Sequence[str]) -> int:
    """0 where few single verdicts are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.work_audits", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="int8 without overlap, after three rounds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = list[Row]()
    for name, setting in settings(is_quick=options.quick):
        with tempfile.TemporaryDirectory() as folder:
            found = rows_of(name, findings(contributed(Path(folder), setting)), setting)
        rows += found
        write_rows(rows, options.json)
        print_rows(found, name)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
