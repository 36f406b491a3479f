"""docker/kubernetes/ as `kubectl kustomize` renders it, for the features that these folders use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.docker.assets import DOCKER

FOLDER = DOCKER / "kubernetes"
OVERLAYS = ("overlays/every-node", "overlays/lasting", "overlays/spot")
KNOWN = {"apiVersion", "kind", "namespace", "labels", "resources", "components", "configMapGenerator", "images"}
_CLUSTER_WIDE = {"Namespace", "PriorityClass"}


def rendered(folder: str) -> list[Any]:
    """The documents of one folder, with the shared pod merged into peers, and namespace, labels and image filled in."""
    path = FOLDER / folder
    config = _yaml(path / "kustomization.yaml")[0]
    assert set(config) <= KNOWN, "this reader does not know the rest"
    documents = [document for name in config["resources"] for document in _yaml(path / name)]
    for name in config.get("components", []):
        documents = [_with_component((path / name).resolve(), document) for document in documents]
    for document in documents:
        if document["kind"] not in _CLUSTER_WIDE:
            document["metadata"]["namespace"] = config["namespace"]
        for labels in config.get("labels", []):
            _add_labels(document, labels)
        for container in containers(document):
            (image,) = [row for row in config["images"] if row["name"] == container["image"]]
            container["image"] = f"{image['newName']}:{image['newTag']}"
    return documents


def pod_spec(document: Any) -> Any:
    """The pod of a workload. Other kinds have {}."""
    template = document.get("spec", {}).get("template", {}) if document["kind"] != "PodMonitor" else {}
    return template.get("spec", {})


def containers(document: Any) -> list[Any]:
    """All containers of a workload, those that run first too."""
    spec = pod_spec(document)
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def merged(old: Any, new: Any) -> Any:
    """A strategic merge: maps by key, lists of named things by name, new ones first. Other lists are replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old[key], new[key]) if key in old else new[key] for key in new}}
    if isinstance(old, list) and isinstance(new, list) and all(_is_named(row) for row in (*old, *new)):
        known = {row["name"]: row for row in old}
        changed = [merged(known[row["name"]], row) if row["name"] in known else row for row in new]
        return [*changed, *(row for row in old if row["name"] not in {row["name"] for row in new})]
    return new


def _is_named(row: Any) -> bool:
    return isinstance(row, dict) and "name" in row


def _with_component(folder: Path, document: Any) -> Any:
    config = _yaml(folder / "kustomization.yaml")[0]
    for patch in config["patches"]:
        target = patch["target"]
        if document["metadata"]["name"] == target["name"] and document["kind"] in target["kind"].strip("()").split("|"):
            (new,) = _yaml(folder / patch["path"])
            document = merged(document, {"spec": new["spec"]})
    return document


def _add_labels(document: Any, labels: Any) -> None:
    parts = [document["metadata"]]
    if labels.get("includeTemplates") and pod_spec(document):
        parts.append(document["spec"]["template"]["metadata"])
    for part in parts:
        part["labels"] = {**part.get("labels", {}), **labels["pairs"]}


def _yaml(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf8")))
