"""`deploy/kubernetes`: its resources agree with one another and with the server's settings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.engine.options import Options
from paceline.serve.kv_events import events_config
from paceline.serve.settings import ENV_PREFIX, Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
CORE = ("Deployment", "Service", "PersistentVolumeClaim")
"""Kinds that Kubernetes itself has."""


def resources() -> dict[str, dict[str, Any]]:
    """{kind: its only resource}."""
    found = [yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"]
    assert len({it["kind"] for it in found}) == len(found)
    return {it["kind"]: it for it in found}


def pod() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's description, and that of its container."""
    spec = resources()["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    return spec, container


def test_every_file_is_a_resource_of_the_kustomization() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}
    assert kustomization["images"][0]["name"] == pod()[1]["image"]


def test_selectors_ports_and_claims_meet() -> None:
    all_, (spec, container) = resources(), pod()
    labels = all_["Deployment"]["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert all_["Deployment"]["spec"]["selector"]["matchLabels"] == labels == all_["Service"]["spec"]["selector"]
    for kind in ("PodMonitor", "InferencePool"):
        assert all_[kind]["spec"]["selector"]["matchLabels"] == labels
    assert all_["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert all_["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] in ports
    assert all_["InferencePool"]["spec"]["targetPorts"] == [{"number": ports["http"]}]
    assert all_["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == all_["Deployment"]["metadata"]["name"]
    claim = spec["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == all_["PersistentVolumeClaim"]["metadata"]["name"]


def test_the_environment_is_of_known_settings() -> None:
    spec, container = pod()
    given = {each["name"].removeprefix(ENV_PREFIX).lower(): each["value"] for each in container["env"]}
    assert given.keys() <= {*Options.__dataclass_fields__, *Settings.__dataclass_fields__, "model"}
    assert spec["enableServiceLinks"] is False, "a Service named paceline sets PACELINE_PORT, to an address"
    config, ports = events_config(given["kv_events_config"]), {port["containerPort"] for port in container["ports"]}
    for address in (config.endpoint, config.replay_endpoint):
        assert address is not None and int(address.rpartition(":")[2]) in ports


def test_the_grace_period_holds_the_drain() -> None:
    spec, container = pod()
    drain = next(float(it["value"]) for it in container["env"] if it["name"] == "PACELINE_DRAIN_TIMEOUT")
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] >= pause + drain + 10
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < pause


def test_metrics_that_scale_are_served() -> None:
    query = resources()["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    source = (Path(__file__).parents[2] / "src/paceline/serve/vllm_names.py").read_text()
    for name in ("num_requests_running", "num_requests_waiting"):
        assert f"vllm:{name}{{" in query and f'"{name}"' in source


@pytest.mark.parametrize("kind", CORE)
def test_schema(kind: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(resources()[kind], kubernetes_validate.latest_version(), strict=True)
