"""Benchmarks are not run here, but each can start, and what they put in the place of our own names is still used under that name."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from protocol.ids import PeerId, Root
from protocol.rounds.messages.record import CommitRecord
from tests.architecture.source import ROOMS, Module, modules
from tests.benchmarks.allreduce import take_turns
from tests.benchmarks.allreduce_arithmetic import Codecs, Errors, error_rows, table
from tests.benchmarks.allreduce_groups import Group, Trial
from tests.benchmarks.allreduce_kill import Killed, kill_rows
from tests.benchmarks.allreduce_marks import Marks
from tests.benchmarks.allreduce_plan import FULL, FULL_KILLS, KILLED_AT, QUICK_KILLS, Plan, expected_s
from tests.benchmarks.allreduce_rows import Measured, Setting, _idle_rows, _time_rows
from tests.benchmarks.attack_training import ATTACKS, HONEST, Sight
from tests.benchmarks.attacks import Plan as AttackPlan
from tests.benchmarks.attacks import main as attacks_main
from tests.benchmarks.attacks import tokens_over
from tests.benchmarks.convergence import Runs
from tests.benchmarks.results import Row, at_most, write_rows


def _benchmarks() -> list[Module]:
    return [module for module in modules("tests") if module.path.startswith("tests/benchmarks/")]


def _name(module: Module) -> str:
    return module.path.removesuffix(".py").replace("/", ".")


def _replaced(module: Module) -> list[tuple[str, str, str]]:
    """The owner as it is written, the attribute and what takes its place, of each `setattr(owner, "attribute", ...)`."""
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    return [
        (ast.unparse(call.args[0]), call.args[1].value, ast.unparse(call.args[2]))
        for call in calls
        if ast.unparse(call.func) == "setattr"
        and isinstance(call.args[1], ast.Constant)
        and isinstance(call.args[1].value, str)
    ]


def _function(module: Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function of this name in a module, however deep it stands, that is no method; None where there is none."""
    functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    plain = [function for function in functions if [each.arg for each in function.args.args[:1]] != ["self"]]
    return next((function for function in plain if function.name == name), None)


def _walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, which nobody evaluates: a name that stands only there is not looked up."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _walk_what_runs(child)


def _names_used(name: str) -> set[str]:
    """The names that one of our modules looks up, and those that it defines itself."""
    (tree,) = [module.tree for module in modules() if _name(module) == name]
    nodes = list(_walk_what_runs(tree))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return defined | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


HOOKS = [(module, *hook) for module in _benchmarks() for hook in _replaced(module)]


def test_a_row_on_file_has_the_fields_that_its_readers_expect(tmp_path: Path) -> None:
    row = at_most("recovery", "until all train again", [2.0, 1.0, 4.0], 3.0, {"peers": 4})
    write_rows([row], tmp_path / "rows.jsonl")
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "bench": "recovery",
        "metric": "until all train again",
        "value": 2.0,
        "unit": "s",
        "baseline": None,
        "ratio": None,
        "target": "<= 3",
        "met": False,
        "trials": 3,
        "spread": {"best": 1.0, "worst": 4.0},
        "settings": {"peers": 4},
    }


def _reported(at_s: float, *host_bytes: int) -> list[dict[str, object]]:
    """Reports of n peers in a trial; only the pause before it matters."""
    lanes = [f"{lane}_bytes_{way}" for lane in ("control", "bulk") for way in ("up", "down")]
    return [
        {"idle": {"at_s": at_s, **dict.fromkeys(lanes, 0), "host_bytes_up": num_bytes, "host_bytes_down": 0}}
        for num_bytes in host_bytes
    ]


@pytest.mark.parametrize(("most", "is_met"), [(7_900, True), (8_100, False)])
def test_idle_bytes_are_judged_by_the_peer_that_says_most(most: int, is_met: bool) -> None:
    setting = Setting(1000, 3, 0, ("int8",), idle_s=40.0)
    trial = Trial(wall_s=1.0, cpu_s=1.0, cpu_whole_s=1.0, reported=_reported(40.0, 100, most, 200))
    rows = _idle_rows(Measured(setting, "int8", [trial], {}), "here", {})
    assert (rows[0].met, rows[0].spread["worst"], rows[0].value) == (is_met, most / 40, 5.0)


def _figures(row: Row) -> tuple[float | None, float | None, str, bool | None]:
    return row.value, row.baseline, row.target, row.met


def test_what_a_time_leaves_out_stands_beside_the_same_baseline_without_a_target() -> None:
    setting = Setting(25_000_000, 4, 0, ("int8",))
    ours = [Trial(wall_s, 1.0, 1.5, since_order_s=wall_s + 0.5) for wall_s in (1.0, 0.9, 1.1)]
    theirs = {"hivemind fp16": [Trial(4.0, 5.0, 5.0)]}
    rows = {row.metric: row for row in _time_rows(Measured(setting, "int8", ours, theirs), "here", {}, is_judged=True)}
    assert _figures(rows["here: wall against hivemind fp16"]) == (1.0, 4.0, "ratio <= 0.333", True)
    assert _figures(rows["here: wall from the order on against hivemind fp16"]) == (1.5, 4.0, "", None)
    assert _figures(rows["here: processor time of all against hivemind fp16"]) == (1.0, 5.0, "ratio <= 0.25", True)
    whole = rows["here: processor time of all, state on disk included against hivemind fp16"]
    assert _figures(whole) == (1.5, 5.0, "", None)


def _killed(victim: int, wall_s: float, sent: int, twice: int, digests: str = "aaa") -> Killed:
    reported = [
        {"digest": each, "attempt": 1, "twice_bytes": twice, "spent": {"bulk_bytes_up": sent}} for each in digests
    ]
    return Killed(victim, wall_s, reported)


def _calm() -> list[Trial]:
    return [Trial(wall_s, 1.0, 1.0, [{"spent": {"bulk_bytes_up": 1000}}] * 4) for wall_s in (2.0, 1.9, 2.1)]


@pytest.mark.parametrize(("slowest_s", "most_sent", "is_met"), [(2.6, 1250, True), (3.0, 1300, False)])
def test_kills_are_told_by_their_medians_and_judged_by_the_worst_one_and_bytes_sent_again_by_the_net_figure(
    slowest_s: float, most_sent: int, is_met: bool
) -> None:
    kills = [_killed(3, 2.4, 1100, 300), _killed(2, slowest_s, most_sent, 350), _killed(1, 2.2, 990, 200)]
    identical, wall, again, twice = kill_rows(kills, _calm(), "here", {})
    assert (identical.value, identical.met, identical.trials) == (1.0, True, 3)
    assert (*_figures(wall), wall.ratio, wall.trials) == (2.4, 2.0, "ratio <= 1.3", is_met, 1.2, 3)
    assert wall.spread == {"best": 2.2, "worst": slowest_s}
    assert (_figures(again), again.spread["best"]) == ((0.1, None, "<= 0.25", is_met), 0.0)
    assert (_figures(twice), twice.spread) == ((0.3, None, "", None), {"best": 0.2, "worst": 0.35})


def test_one_kill_that_is_not_survived_is_enough_to_miss_the_target() -> None:
    for kills in ([_killed(3, 2.4, 1100, 300), None], [_killed(3, 2.4, 1100, 300), _killed(2, 2.4, 1100, 300, "aba")]):
        assert (kill_rows(kills, _calm(), "here", {})[0].value, kill_rows(kills, _calm(), "here", {})[0].met) == (
            0.5,
            False,
        )
    (alone,) = kill_rows([None], _calm(), "here", {})
    assert (alone.value, alone.met) == (0.0, False)


def test_each_kill_of_the_plan_takes_a_start_and_four_rounds() -> None:
    (setting,) = [
        each for each in FULL if (each.num_elements, each.num_peers, each.rate_mbit_s) == (25_000_000, *KILLED_AT[:2])
    ]
    round_s = 1.5 * 25e6 * 8.125 / (0.85 * 100e6)  # 2 (N - 1) / N of the encoding, at what links are taken to carry
    more_s = expected_s(setting, 5, FULL_KILLS) - expected_s(setting, 5, QUICK_KILLS)
    assert more_s == pytest.approx(2 * (20.0 + 4 * (2.5 + round_s)), rel=0.01)


def test_of_a_reducer_with_two_slices_both_are_looked_at_for_when_a_record_is_held() -> None:
    """Of a reducer that a mend had given a second slice only the last one in the record was looked at."""
    me, other, at_s = PeerId("me"), PeerId("other"), (5.0, 2.0, 3.0, 1.0)
    parts = [(me, b"a"), (other, b"b"), (me, b"c"), (other, b"d")]
    slices = [SimpleNamespace(reducer=reducer, result_hash=Root(name)) for reducer, name in parts]
    marks = Marks()
    marks.results_s = {Root(name): seconds for (_, name), seconds in zip(parts, at_s, strict=True)}
    marks.mark_results(cast(CommitRecord, SimpleNamespace(slices=slices)), me)
    assert (marks.at_s["held"], marks.at_s["reduced"]) == (5.0, 5.0)
    marks.mark_results(cast(CommitRecord, SimpleNamespace(slices=slices)), other)
    assert (marks.at_s["held"], marks.at_s["reduced"]) == (5.0, 2.0)


def test_a_round_that_mends_a_kill_is_neither_a_trial_nor_one_of_those_before_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told among those before the trials."""
    walls_s = iter(range(9))
    monkeypatch.setattr(Group, "_judged", lambda *_: Trial(next(walls_s), 1.0, 1.0))
    group, setting = Group("ours", tmp_path, []), Setting(1, 2, 0, ("int8",), num_warm_ups=3)
    take_turns([group], Plan([setting], 2, 600.0), setting)
    group.trial(1.0, is_warm_up=True)
    assert [trial.wall_s for trial in group.first] == [0, 1, 2]
    assert [trial.wall_s for trial in group.trials] == [3, 4]


def test_bytes_count_as_sent_twice_where_the_same_chunk_of_the_same_thing_leaves_again() -> None:
    marks = Marks()
    for what, chunk in (("contribution", 1), ("contribution", 2), ("result to x", 1), ("contribution", 1)):
        marks.sent(what, chunk, 10)
    assert marks.twice_bytes == 10
    marks.begin()
    marks.sent("contribution", 1, 10)
    assert marks.twice_bytes == 0


@pytest.mark.parametrize(("worst", "is_flat"), [(0.0104, True), (0.0106, False)])
def test_an_error_is_flat_where_no_number_of_members_has_much_more_than_two(worst: float, is_flat: bool) -> None:
    errors = {2: 0.01, 3: 0.01, 4: worst, 8: 0.01, 16: 0.009}
    found = {Codecs("int8", "int8"): Errors(errors, errors), Codecs("topk", "top25"): Errors(errors, errors)}
    int8, topk, of_sent = error_rows("here", found)
    assert (_figures(int8), int8.spread["worst"]) == ((0.009, None, "<= 1.05 x that of 2 members", is_flat), worst)
    assert (topk.met, of_sent.met) == (is_flat, None)
    assert len(table(found).splitlines()) == 2 + 3


def test_there_are_hooks_to_look_at() -> None:
    assert len(HOOKS) > 10


def test_what_replaces_a_name_of_ours_says_the_name() -> None:
    """A loop that replaced methods by their `__name__` was not looked at."""
    hidden = [
        f"{module.path}:{node.lineno}"
        for module in _benchmarks()
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and not _is_named(module, node)
    ]
    assert hidden == []


def _is_named(module: Module, call: ast.Call) -> bool:
    """Whether the name is written out, or the owner is an object that the module made itself."""
    is_imported = ast.unparse(call.args[0]).partition(".")[0] in _imported(module)
    return isinstance(call.args[1], ast.Constant) or not is_imported


def _imported(module: Module) -> set[str]:
    """The names that its imports bind."""
    imports = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}


@pytest.mark.parametrize(
    ("module", "owner", "attribute", "_replacement"),
    HOOKS,
    ids=lambda value: value if isinstance(value, str) else value.path,
)
def test_what_a_benchmark_replaces_is_used_where_it_replaces_it(
    module: Module, owner: str, attribute: str, _replacement: str
) -> None:
    if owner.startswith(ROOMS):  # a module, which the benchmark may import late
        assert attribute in _names_used(owner)
    else:
        defined_in = next(name for name, _ in module.imports() if name.endswith(f".{owner}")).removesuffix(f".{owner}")
        assert attribute in vars(getattr(importlib.import_module(defined_in), owner))


@pytest.mark.parametrize(
    ("module", "owner", "attribute", "replacement"),
    HOOKS,
    ids=lambda value: value if isinstance(value, str) else value.path,
)
def test_what_a_benchmark_puts_in_the_place_of_a_method_takes_what_the_method_takes(
    module: Module, owner: str, attribute: str, replacement: str
) -> None:
    function = _function(module, replacement)
    if owner.startswith(ROOMS) or function is None or function.args.vararg is not None:
        return
    defined_in = next(name for name, _ in module.imports() if name.endswith(f".{owner}")).removesuffix(f".{owner}")
    replaced = getattr(getattr(importlib.import_module(defined_in), owner), attribute)
    taken = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    assert taken[1:] == list(inspect.signature(replaced).parameters)[1:]


@pytest.mark.parametrize("name", sorted(_name(module) for module in _benchmarks() if "ArgumentParser(" in module.text))
def test_benchmark_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(name).main
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "--" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("losses", "times"),
    [([4.0, 2.0], 1.0), ([4.0, 1.9], 1.0), ([4.0, 2.5], 4 / 3), ([4.0, 3.0], 2.0), ([4.0, 3.5], 4.0)],
)
def test_tokens_under_attack_are_those_of_the_honest_alone_until_they_had_its_last_loss(
    losses: list[float], times: float
) -> None:
    assert tokens_over(losses, [4.0, 3.0, 2.0]) == pytest.approx(times)


def test_attackers_that_are_strangers_or_claim_more_are_trainings_of_their_own_and_the_honest_ones_are_the_same() -> (
    None
):
    plain = AttackPlan([10, 20], [10, 20, 30], ["int8", "topk"], list(ATTACKS), range(3), 320)
    strangers = replace(plain, are_strangers=True, weight=1000)
    keys, others = ({trial.key for trial in plan.trials()} for plan in (plain, strangers))
    assert keys & others == {trial.key for trial in plain.trials() if not trial.attack.num}
    num_honest, num_attacked = 2 * 3 * (2 + 3) * 2, 2 * 3 * 3 * (12 + 2) * 2
    assert (len(keys), len(keys | others)) == (num_honest + num_attacked, num_honest + 2 * num_attacked)


def test_the_count_of_a_benchmark_of_attacks_takes_what_is_in_the_file_from_it_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = [
        "--json",
        str(file),
        "--members",
        "10",
        "--percents",
        "20",
        "--codecs",
        "int8",
        "--seeds",
        "1",
        "--count",
    ]
    assert attacks_main(arguments) == 0
    assert "17 of 17 trainings are left" in capsys.readouterr().out
    plan = AttackPlan([10], [20], ["int8"], list(ATTACKS), range(1), 320)
    runs = Runs(tmp_path / "rows.jsonl.runs")
    first = next(plan.trials())
    assert first.trial.regime.num_peers == 8
    runs.add(first, {"loss": 2.5, "cpu_s": 8 * 320 * 0.5})
    assert attacks_main(arguments) == 0
    assert "16 of 17 trainings are left: about 7.1 h" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        attacks_main([*arguments, "--percents", "15"])


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_of_all_attackers_and_finite_and_only_the_honest_one_is_honest(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    honest, own, up = (torch.randn(*shape, generator=draw) for shape in ((6, 40), (2, 40), (40,)))
    sight = Sight(honest, own, lambda mean_N: up, {"first": honest[:2]}, 0.9, draw)
    sent = ATTACKS[name](sight)
    assert sent.shape == own.shape
    assert bool(sent.isfinite().all())
    assert torch.equal(sent, own) == (name == HONEST)
