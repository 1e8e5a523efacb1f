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
from scripts.lock import EXTRA_LOCKS, IMAGE_EXTRAS, blocks

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
    assert probe in monitoring.PROBES
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
    assert f"EXPOSE {18789}" in text


def locked(path: Path) -> set[str]:
    """The packages of a lock file. Each must be pinned and have a hash."""
    found = blocks(path.read_text())
    for block in found.values():
        assert re.match(r"[\w.-]+==\S+ ", block) and "--hash=sha256:" in block, block
    return {re.sub(r"[-_.]+", "-", name) for name in found}


def names_of(requirements: list[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", one, maxsplit=1)[0]).lower() for one in requirements}


def test_the_image_and_the_extras_are_installed_from_locks_with_hashes() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = whole["project"]["optional-dependencies"]
    image = [*whole["project"]["dependencies"], *whole["dependency-groups"]["build"]]
    image += [one for extra in IMAGE_EXTRAS for one in extras[extra]]
    assert names_of(image) <= locked(ROOT / "deploy" / "requirements.lock")
    assert {path.stem for path in EXTRA_LOCKS.iterdir()} == extras.keys()
    for extra, requirements in extras.items():
        assert names_of(requirements) <= locked(EXTRA_LOCKS / f"{extra}.txt"), "run `make lock`"


def test_no_lock_file_names_the_host_of_a_package_index() -> None:
    for lock in [*ROOT.glob("*.lock"), *DEPLOY.glob("*.lock"), *EXTRA_LOCKS.iterdir()]:
        assert "://" not in lock.read_text(), lock
    assert '"resolved"' not in (ROOT / "ui" / "package-lock.json").read_text()


def test_no_build_downloads_what_no_lock_names_or_runs_scripts_of_packages() -> None:
    """Every command of the project that installs packages checks hashes, and npm runs none of their scripts."""
    files = [DEPLOY / "Dockerfile", ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "scripts" / "setup"]
    commands = [
        line for file in files for line in file.read_text().splitlines() if re.search(r"(pip|npm) (install|ci)\b", line)
    ]
    assert len(commands) >= 6
    for command in commands:
        own = "--no-deps" in command and "--no-build-isolation" in command
        assert "--require-hashes" in command or "--ignore-scripts" in command or own, command


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
