from __future__ import annotations

from protocol.estimates.dry_run import (
    Estimate,
    Setting,
    estimate_lines,
    round_estimates,
    run_settings,
    setting_lines,
    traffic_estimates,
    turn_estimates,
)
from protocol.run.manifest import default_run_toml, parse_run_config


def test_settings_are_told_whole_with_their_origin_and_cannot_move_the_cursor() -> None:
    settings = [
        Setting("state_dir", "flag --state-dir", "/" + "long/" * 30),
        Setting("empty", "default", ""),
        Setting("no_listen", "default", False),
        Setting("port", "default", None),
        Setting("odd", "file \x1b[2J", "\x1b[2J"),
    ]
    assert setting_lines(settings) == [
        "  state_dir  /" + "long/" * 30 + "  (flag --state-dir)",
        '  empty      ""  (default)',
        "  no_listen  false  (default)",
        "  port       none  (default)",
        "  odd        \\x1b[2J  (file \\x1b[2J)",
    ]
    assert setting_lines([]) == []


def test_estimate_without_a_name_goes_on_with_the_one_before() -> None:
    assert estimate_lines([Estimate("disk", "1 GB"), Estimate("", "and more")]) == ["  disk  1 GB", "        and more"]


def test_every_value_of_a_run_is_told_and_those_not_in_the_file_are_defaults() -> None:
    settings = {
        s.name: (s.origin, s.value) for s in run_settings(parse_run_config(default_run_toml()), "file run.toml")
    }
    assert settings["model.dim"] == ("file run.toml", 128)
    assert settings["run.max_members"] == ("default", 64)
    assert settings["run.max_peers"] == ("default", 64)
    assert settings["admission.credential_days"] == ("default", 30)
    assert settings["data.glob"] == ("default", "")


def test_traffic_is_told_for_a_round_a_day_and_the_run() -> None:
    lines = estimate_lines(traffic_estimates(parse_run_config(default_run_toml()), reduces=True))
    assert lines == [
        "  a round    up 1.5 MB, down 1.5 MB, with 64 peers (int8)",
        "             at least 0.206 Mbit/s each way, or it is not over after the 60 s that it may take",
        "  a day      up 2.2 GB, down 2.2 GB, at a round every 60 s;",
        "             more where all peers together train over 2,048 tokens/s",
        "  whole run  up 251.4 MB, down 251.4 MB, in 163 rounds;",
        "             more where rounds are due before their target tokens are reached",
    ]


def test_turns_are_told_where_a_run_takes_more_peers_than_a_round() -> None:
    text = default_run_toml().replace("min_members = 2", "min_members = 2\nmax_peers = 2000")
    assert estimate_lines(turn_estimates(parse_run_config(text))) == [
        "  peers  up to 2,000 at a time, and 64 in one round of one unit; those that waited longest go first"
    ]
    assert turn_estimates(parse_run_config(default_run_toml())) == ()


def test_rounds_that_wait_for_a_part_of_the_members_weights_without_a_cap_and_sums_that_nobody_checks_are_told() -> (
    None
):
    default = default_run_toml()
    text = default.replace("[round]\n", "[round]\nclose_share = 0.9\nweight_cap = 0\naudit_share = 0.0\n")
    assert text != default
    slow, trust, audits = estimate_lines(round_estimates(parse_run_config(text)))
    assert slow == "  slow peers  a round waits for 90% of its members and a quarter longer, and for all in one of 8"
    assert trust.startswith("  trust       weight_cap = 0: a member weighs as much as it says that it trained")
    assert audits.startswith("  audits      audit_share = 0: nobody computes others' sums again")
    assert round_estimates(parse_run_config(default)) == ()


def test_sources_of_a_mixture_are_told_one_by_one() -> None:
    mixed = default_run_toml().replace('source = "python-stdlib"', "isolate = true")
    mixed = mixed.replace("[inner]", '[[data.source]]\nkind = "text"\nglob = "*.txt"\nweight = 2.0\n[inner]')
    settings = {s.name: s.value for s in run_settings(parse_run_config(mixed), "file run.toml")}
    assert settings["data.source"] == "mixture"
    told = {name: value for name, value in settings.items() if name.startswith("data.source ")}
    assert told == {"data.source 1: kind": "text", "data.source 1: glob": "*.txt", "data.source 1: weight": 2.0}
