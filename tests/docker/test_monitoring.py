"""Boards and alerts ask for what is exported; whether they are right is for `promtool test rules` (docker/README.md)."""

from __future__ import annotations

import pytest

from tests.docker.assets import alerts, boards, exported, names_in, yaml_of


@pytest.mark.parametrize(
    ("promql", "names"),
    [
        ("a_b", {"a_b"}),
        ('sum by (instance, lane) (rate(a_total{lane="bulk"}[5m]))', {"a_total"}),
        ('absent(up{job="host"} == 1)', {"up"}),
        ('changes(a[30m]) == 0 and on (job, instance) b{phase="c"} offset 30m == 1', {"a", "b"}),
        ("abs(a) == Inf or a != a", {"a"}),
        ("time() - max_over_time(timestamp(changes(a[1m]) > 0)[6h:30s])", {"a"}),
        ("rate(a[$__rate_interval])", {"a"}),
    ],
)
def test_metrics_are_told_from_functions_labels_and_words(promql: str, names: set[str]) -> None:
    assert names_in(promql) == names


def test_every_metric_of_a_panel_is_exported() -> None:
    asked = {
        (file, panel["title"], name)
        for file, board in boards().items()
        for panel in board["panels"]
        for target in panel["targets"]
        for name in names_in(target["expr"])
    }
    assert len(asked) > 40
    assert {row for row in asked if row[2] not in exported()} == set()


def test_losses_are_shown_in_bits_per_byte_as_on_the_screens() -> None:
    shown = [
        (panel["title"], target["expr"])
        for board in boards().values()
        for panel in board["panels"]
        for target in panel["targets"]
        if any(name.endswith("_nats") for name in names_in(target["expr"]))
    ]
    assert len(shown) == 3
    for title, expression in shown:
        assert title.endswith("in bits per byte")
        assert expression.endswith(" / scalar(ln(vector(2)))")


def test_volunteers_are_on_the_board_of_the_run_by_name() -> None:
    board = boards()["run.json"]
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    series = {name: target for target in targets for name in names_in(target["expr"])}
    for name in ("counted_tokens", "counted_rounds", "heard_ago_seconds"):
        assert series[f"potluck_run_peer_{name}"]["legendFormat"] == "{{name}} {{peer}}"


def test_every_metric_of_a_task_but_the_round_is_on_the_board_of_the_run_by_task() -> None:
    targets = [target for panel in boards()["run.json"]["panels"] for target in panel["targets"]]
    shown = {name: target["legendFormat"] for target in targets for name in names_in(target["expr"])}
    of_tasks = {name for name in exported() if name.startswith("potluck_run_task_")} - {"potluck_run_task_round_index"}
    assert len(of_tasks) == 3
    assert all(shown[name].startswith("{{task}}") for name in of_tasks)


def test_every_metric_of_an_alert_is_exported() -> None:
    asked = {(rule["alert"], name) for rule in alerts() for name in names_in(rule["expr"])}
    assert len(asked) > 10
    assert {row for row in asked if row[1] not in exported()} == set()


def test_every_alert_says_what_happened_and_what_to_do_and_has_a_test() -> None:
    tested = {
        case["alertname"]
        for test in yaml_of("prometheus/alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if "exp_alerts" in case
    }
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert set(names) == tested
    for rule in alerts():
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_boards_have_ids_of_their_own_that_stay() -> None:
    assert {board["uid"] for board in boards().values()} == {"potluck-run", "potluck-peers", "potluck-network"}
    for file, board in boards().items():
        assert board["uid"] == "potluck-" + file.removesuffix(".json")
        assert "id" not in board  # Grafana gives it; one in the file would clash with another board's
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        titles = [panel["title"] for panel in board["panels"]]
        assert len(titles) == len(set(titles))


def test_boards_take_their_data_source_from_a_variable() -> None:
    for board in boards().values():
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        for panel in board["panels"]:
            for part in (panel, *panel["targets"]):
                assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
                assert "$instance" not in part.get("expr", "") or "instance" in variables


def test_panels_say_what_they_show_and_do_not_overlap() -> None:
    for board in boards().values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            assert panel["description"].endswith(".")
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken
            taken |= cells


def test_data_source_and_folder_are_where_boards_and_compose_expect_them() -> None:
    (source,) = yaml_of("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    for board in boards().values():
        assert board["templating"]["list"][0]["current"]["value"] == source["uid"]
    (provider,) = yaml_of("grafana/provisioning/dashboards/boards.yml")["providers"]
    mounts = yaml_of("compose.yml")["services"]["grafana"]["volumes"]
    assert f"./grafana/boards:{provider['options']['path']}:ro" in mounts


def test_prometheus_scrapes_the_services_at_the_port_of_their_status_pages() -> None:
    config, services = yaml_of("prometheus/prometheus.yml"), yaml_of("compose.yml")["services"]
    assert config["rule_files"] == ["alerts.yml"]
    for job in config["scrape_configs"]:
        for found in job["dns_sd_configs"]:
            assert found["port"] == 7620
            assert set(found["names"]) <= set(services)
