"""The examples in deploy/ fit each other and the Gateway."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw.cluster.links import LINK_PATH
from openclaw.config.load import read_config
from openclaw.gateway.http import monitoring

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def gateways(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in compose["services"].items() if name.startswith("gateway-")}


def asked_for() -> set[str]:
    """The variables that a person fills in."""
    return set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))


def test_compose_names_services_files_and_variables_that_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "gateway-1", "gateway-2", "balancer"}
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)
        for volume in service.get("volumes", []):
            place = volume.split(":")[0]
            assert (DEPLOY / place).is_file() if place.startswith("./") else place in compose["volumes"]
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    named = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert named <= asked_for()


def test_every_node_has_a_valid_configuration_and_an_address_of_its_own(compose: dict[str, Any]) -> None:
    addresses: set[str] = set()
    for name, service in gateways(compose).items():
        environ = dict.fromkeys(asked_for(), "0123456789abcdef0123456789abcdef") | service["environment"]
        found = read_config(str(DEPLOY / "openclaw.json"), environ)
        assert found.valid and not found.refusals and not found.warnings, [*found.issues, *found.refusals]
        config = found.config
        assert config.storage.url == environ["OPENCLAW_STORAGE_URL"]
        assert config.cluster.advertise_url == f"ws://{name}:{config.gateway.port}"
        assert config.gateway.trusted_proxies == [compose["networks"]["default"]["ipam"]["config"][0]["subnet"]]
        addresses.add(config.cluster.advertise_url)
        state = [volume.split(":")[0] for volume in service["volumes"] if volume.endswith(":/state")]
        assert state == [f"state-{name.removeprefix('gateway-')}"]
    assert len(addresses) == 2


def test_the_balancer_knows_the_gateways_and_asks_a_probe_that_exists(compose: dict[str, Any]) -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    assert set(re.findall(r"^\s+server (\S+) \1:18789$", text, re.MULTILINE)) == set(gateways(compose))
    (probe,) = re.findall(r"option httpchk GET (\S+)", text)
    assert ("GET", probe) in {(route[0], route[1]) for route in monitoring.ROUTES}
    assert f"http-request deny if {{ path {LINK_PATH} }}" in text, "how nodes talk to each other is not for clients"
    (port,) = re.findall(r"^\s+bind :(\d+)$", text, re.MULTILINE)
    assert compose["services"]["balancer"]["ports"] == [f"{port}:{port}"]
    if (haproxy := shutil.which("haproxy")) is not None:
        # The names of the services are known in their network only.
        here = re.sub(r"gateway-(\d):18789", r"127.0.0.1:18789", text)
        done = subprocess.run([haproxy, "-c", "-f", "/dev/stdin"], input=here, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_the_image_is_made_of_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert set(sources.split()) <= kept
        assert all((ROOT / source).exists() for source in sources.split())
    (extras,) = re.findall(r"/src\[([\w,]+)\]", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert "postgres" in extras and f"EXPOSE {18789}" in text


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    text = (DEPLOY / "openclaw@.service").read_text()
    assert "openclaw gateway run" in text and "StateDirectory=openclaw/%i" in text
    if (analyze := shutil.which("systemd-analyze")) is None:
        return  # A container has no systemd to ask.
    # There are neither the user nor the program here.
    here = text.replace("/opt/openclaw/bin/openclaw", "/bin/true").replace("openclaw\nGroup=openclaw", "root")
    (tmp_path / "openclaw@1.service").write_text(re.sub(r"^EnvironmentFile=.*\n", "", here, flags=re.MULTILINE))
    done = subprocess.run([analyze, "verify", str(tmp_path / "openclaw@1.service")], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "openclaw@" in line]
    assert not ours, ours
