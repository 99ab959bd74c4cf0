"""What is built and what lies beside it: wheel and sdist in an empty environment, compose, dashboards, docs."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from paceline.serve.admission import Hosts
from paceline.serve.errors import ApiError
from tests.patience import PATIENCE_S
from tests.serve.http import send

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"pyyaml": "yaml", "pyzmq": "zmq", "huggingface-hub": "huggingface_hub", "prompt-toolkit": "prompt_toolkit",
           "prometheus-client": "prometheus_client",
           "faiss-cpu": "faiss", "scikit-learn": "sklearn"}  # fmt: skip


# -- wheel and sdist -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made from it."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, timeout=PATIENCE_S
    )
    return out


@pytest.mark.full
def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Nothing of the source tree is in reach: the demo pair, the native sources and the page come from the wheel. Its
    dependencies are this environment's (torch alone is a gigabyte); PACELINE_INSTALL=1 installs them, too."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python, site = tmp_path / "env/bin/python", next((tmp_path / "env").glob("lib/python*/site-packages"))
    real = bool(os.environ.get("PACELINE_INSTALL"))
    more = [] if real else ["--no-deps"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *more, wheel], check=True, timeout=1800)
    if not real:
        (site / "zz_dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [tmp_path / "env/bin" / command[0], *command[1:]], env=env, cwd=tmp_path, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("python", "-c", "import paceline; print(paceline.__file__)").startswith(str(tmp_path))
    assert run("paceline", "--version").strip() == f"paceline {PROJECT['version']}"
    assert run("paceline", "generate", "Tom has 3 apples", "--max-tokens", "8", "--temperature", "0").strip()
    assert run("paceline-apps", "--help").startswith("Usage: paceline-apps")
    for name in re.findall(r"^  (\w+) ", run("paceline-apps", "--help"), re.M):
        assert "--help" in run("paceline-apps", name, "--help")
    assert "Paceline" in run("python", "-c", "from paceline.serve.playground import page; print(page().body[:300])")


@pytest.mark.full
def test_wheel_and_sdist_hold_the_same_package(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("paceline/")}
    prefix = f"paceline-{PROJECT['version']}/src/"
    with tarfile.open(sdist) as archive:
        source = {name.removeprefix(prefix) for name in archive.getnames() if name.startswith(prefix)}
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert inside == {name.removeprefix("src/") for name in tracked.splitlines()}
    assert inside <= source
    for name in ("py.typed", "native/decoder.cpp", "demo/target/model.safetensors", "serve/page/main.js"):
        assert f"paceline/{name}" in inside


def test_every_import_is_a_dependency() -> None:
    named = [re.split(r"[<>=;\[ ]", line)[0] for line in PROJECT["dependencies"]]
    named += [re.split(r"[<>=;\[ ]", line)[0] for group in PROJECT["optional-dependencies"].values() for line in group]
    named.append("threadpoolctl")  # it comes with scikit-learn
    boxed = {path.stem for path in (ROOT / "src/paceline/apps").rglob("box/*.py")}  # they run in a folder of their own
    known = (
        boxed
        | {MODULES.get(name, name.replace("-", "_")) for name in named}
        | {
            "paceline",
            "starlette",
            "opentelemetry",
            "pydantic_core",
        }
    )
    wrong = []
    for path in (ROOT / "src").rglob("*.py"):
        for module in imported(path):
            if module not in sys.stdlib_module_names and module not in known:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert [w for w in wrong if not w.endswith(" imports triton")] == []  # it comes with torch where there is a GPU


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_the_image_has_what_its_commands_import() -> None:
    """The Docker context holds all that the wheel is made of, and the extras of every command are installed."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*" and "!src" in ignored, "the applications lie below src"
    assert all(module.startswith("paceline.") for module in PROJECT["scripts"].values())
    docker = (ROOT / "Dockerfile").read_text()
    assert "'.[otel,apps,events]'" in docker
    assert all(re.search(rf"\b{re.escape(name)}\b", docker) for name in PROJECT["scripts"])


# -- compose, Prometheus, Grafana ------------------------------------------------------------------------------------


def test_compose_names_files_that_are_there() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    assert set(services) == {"paceline", "prometheus", "grafana"}
    for service in services.values():
        assert "image" in service or (ROOT / service["build"] / "Dockerfile").is_file()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert set(service.get("depends_on", ())) <= set(services)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert services["paceline"]["environment"]["PACELINE_MODEL"] == "${PACELINE_MODEL:-smollm2}"
    for name in services["paceline"]["environment"]:
        assert name in ("PACELINE_MODEL", "PACELINE_DRAFT", "PACELINE_ALLOWED_HOSTS")


def test_what_compose_asks_its_server_over_the_network_is_answered() -> None:
    """Prometheus calls it by its name there, people by localhost; a page that gives itself its address is refused."""
    environment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["paceline"]["environment"]
    allowed = environment["PACELINE_ALLOWED_HOSTS"].partition(":-")[2].rstrip("}")
    hosts = Hosts("0.0.0.0", False, tuple(allowed.split(",")))
    [target] = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    for name in (*target["targets"], "localhost:8000", "127.0.0.1:8000"):
        hosts.check(name)
    with pytest.raises(ApiError, match="Host is"):
        hosts.check("evil.example:8000")


def test_the_image_gives_its_user_the_folder_that_compose_mounts() -> None:
    """A volume takes the owner of the folder in the image; without one it would be root's."""
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["paceline"]["volumes"]
    docker = (ROOT / "Dockerfile").read_text()
    for volume in volumes:
        folder = volume.split(":")[1]
        assert docker.index("USER paceline") < docker.index(f"mkdir -p {folder}")


def test_prometheus_and_grafana_find_the_server() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["paceline:8000"] and job["metrics_path"] == "/metrics"
    folder = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/paceline.yml").read_text())["providers"]
    mounts = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]
    assert any(mount.split(":")[1] == provider["options"]["path"] for mount in mounts)
    assert {panel["datasource"]["uid"] for panel in dashboard()["panels"]} == {source["uid"]}


def dashboard() -> Any:
    return json.loads((ROOT / "deploy/grafana/dashboards/paceline.json").read_text())


def test_the_dashboard_asks_for_metrics_that_there_are(url: str) -> None:
    send(url + "/v1/completions", b'{"prompt": "a", "max_tokens": 4}')
    with urllib.request.urlopen(url + "/metrics") as answer:
        text = answer.read().decode()
    there = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | set(re.findall(r"^([\w:]+)[{ ]", text, re.M))
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"paceline_\w+", expression)}
    assert len(asked) > 12 and asked <= there | {name + "_total" for name in there}, asked - there
    assert all(len(panel["targets"]) == len({t["refId"] for t in panel["targets"]}) for panel in dashboard()["panels"])


def test_vllms_names_are_beside_ours(url: str) -> None:
    send(url + "/v1/completions", b'{"prompt": "Tom has 3 apples", "max_tokens": 8, "temperature": 0}')
    with urllib.request.urlopen(url + "/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    pairs = {
        "num_requests_running": "num_requests_running", "generation_tokens": "generation_tokens",
        "prompt_tokens": "prompt_tokens", "num_preemptions": "preemptions",
        "kv_cache_usage_perc": "kv_cache_usage_perc",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "e2e_request_latency_seconds": "e2e_request_latency_seconds", "request_success": "request_success",
    }  # fmt: skip
    for theirs, ours in pairs.items():
        theirs_, ours_ = families[f"vllm:{theirs}"], families[f"paceline_{ours}"]
        assert [s.value for s in theirs_.samples] == [s.value for s in ours_.samples], theirs
        assert theirs_.type == ours_.type and all(s.labels["model_name"] == "demo" for s in theirs_.samples)
    offered = sum(s.value for s in families["paceline_spec_decode_offered_tokens"].samples)
    assert families["vllm:spec_decode_num_draft_tokens"].samples[0].value == offered


# -- docs ------------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_site_and_no_link_is_broken() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    named = {path for entry in nav for path in entry.values()}
    assert named == {path.name for path in (ROOT / "docs").glob("*.md")}
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "src/paceline/apps").glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"https?://", target):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.full
def test_the_site_is_built_by_one_command(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="zensical is not installed: the docs extra")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=ROOT, check=True, timeout=PATIENCE_S)
    text = (ROOT / "site/python/index.html").read_text(encoding="utf-8")
    assert "SamplingParams" in text and not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="?(?:https?:)?//', text)
