"""The dashboard in docs/grafana.json: Grafana can load it, and it asks for what is exported."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fenced import ROOT

from compactor import telemetry

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
EXPORTED = {
    f"{metric.prometheus_name}{suffix}": metric for metric in telemetry.METRICS for suffix in SUFFIXES[metric.kind]
}
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
#: Words of PromQL, and labels that Prometheus itself sets.
PROMQL = {"sum", "max", "rate", "increase", "histogram_quantile", "by", "le", "job", "h", "__rate_interval"}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_each_query_asks_for_exported_metrics_by_labels_that_they_have() -> None:
    """A metric that is renamed does not leave an empty panel behind; and none is left out."""
    asked = {name for query in queries() for name in re.findall(r"compactor_\w+", query)}
    assert asked <= EXPORTED.keys()
    assert {EXPORTED[name].name for name in asked} == {metric.name for metric in telemetry.METRICS}
    for query in queries():
        names = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"\"[^\"]*\"", "", query)))
        metrics = names & EXPORTED.keys()
        labels = {label for name in metrics for label in EXPORTED[name].labels}
        assert names - metrics - PROMQL <= labels, query


def test_grafana_can_load_it() -> None:
    """The fields that an import needs; panels have their own ids and places, and one data source that the user picks."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["title"]
    assert DASHBOARD["uid"]
    assert "id" not in DASHBOARD, "Grafana gives it one"
    (source,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource"]
    assert source["query"] == "prometheus"
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["type"] in ("stat", "timeseries")
        assert {panel["datasource"]["uid"], *(one["datasource"]["uid"] for one in panel["targets"])} == {
            f"${{{source['name']}}}"
        }
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"]) > 0


def test_no_panel_covers_another() -> None:
    """Grafana's grid has 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("metric", telemetry.METRICS, ids=lambda metric: metric.name)
def test_the_page_tells_what_each_metric_means(metric: telemetry.Metric) -> None:
    """By its name in Prometheus and in OpenTelemetry, with its labels."""
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    total = "_total" if metric.kind == "counter" else ""
    (row,) = re.findall(rf"^\| `{metric.name}` \|.*$", page, re.MULTILINE)
    assert f"`{metric.prometheus_name}{total}`" in row
    assert all(f"`{label}`" in row for label in metric.labels)
