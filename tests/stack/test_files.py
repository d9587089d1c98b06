"""Image, compose file, systemd unit and provisioning: valid, and they fit each other.

No container engine is needed; nothing is built or started here.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.config import load
from tests.stack.tools import (
    DEPLOY,
    DOCKERFILE,
    PROMETHEUS,
    TOP,
    beside_python,
    debian,
    run,
    yaml_of,
)

COMPOSE = TOP / "docker-compose.yml"
UNIT = DEPLOY / "systemd" / "endpoint-monitor.service"
SECRETS = {
    "POSTGRES_PASSWORD": "pg5ecret",
    "GRAFANA_ADMIN_PASSWORD": "gr4fana",
    "ENDPOINT_API_KEY": "k3y",
}
PLUGINS = [
    f"/usr/{folder}/docker/cli-plugins/docker-compose"
    for folder in ("libexec", "lib", "local/lib", "local/libexec")
]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml_of(COMPOSE)["services"]
    return found


# --- the image --------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say() -> None:
    assert run(beside_python("hadolint"), "--no-color", DOCKERFILE) == ""


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    rules = (TOP / ".dockerignore").read_text().splitlines()
    kept = [rule[1:].strip("/") for rule in rules if rule.startswith("!")]
    assert "*" in rules
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = [source for line in lines for source in line.split()]
    assert len(sources) > 5
    for source in sources:
        assert (TOP / source).exists(), source
        assert Path(source).parts[0] in kept, source
    assert not any(fnmatch.fnmatch(".env", rule) for rule in kept)


def test_the_image_runs_as_nobody_special_and_asks_healthz() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"^USER (?!0|root)\d+:\d+$", text, re.MULTILINE)
    assert "/healthz" in text
    assert "EXPOSE 8844" in text
    assert text.count("--require-hashes") == 2


# --- compose ----------------------------------------------------------------------------------


def test_the_compose_file_follows_the_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(beside_python("check-jsonschema"), *schema, COMPOSE)


def test_the_compose_plugin_accepts_the_file_and_asks_for_each_secret() -> None:
    places = [shutil.which("docker-compose"), *PLUGINS]
    plugin = next((path for path in places if path and _is_compose_2(path)), None)
    if plugin is None:
        pytest.skip("no Docker Compose 2; the test of the specification stands in for it")
    command = (plugin, "-f", COMPOSE, "--profile", "demo", "config", "-q")
    run(*command, **SECRETS)
    for secret in SECRETS:
        others = {name: value for name, value in SECRETS.items() if name != secret}
        with pytest.raises(AssertionError, match=secret):
            run(*command, **others)


def _is_compose_2(path: str) -> bool:
    if not Path(path).exists():
        return False
    said = subprocess.run([path, "version"], capture_output=True, text=True, check=False).stdout
    return "Docker Compose version" in said  # the first one, in Python, says docker-compose


def test_images_are_pinned_and_ports_stay_on_loopback(services: dict[str, Any]) -> None:
    for name, service in services.items():
        image = service["image"]
        assert re.fullmatch(r"[a-z/-]+:(v?\d+\.\d+\.\d+\S*|\d+\.\d+\S*|local)", image), image
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_every_service_has_a_health_check(services: dict[str, Any]) -> None:
    # The monitor's is its image's.
    assert {name for name, service in services.items() if "healthcheck" not in service} == {
        "monitor"
    }


def test_what_compose_mounts_from_here_exists_and_is_read_only(services: dict[str, Any]) -> None:
    mounts = [m for service in services.values() for m in service.get("volumes", [])]
    ours = [mount.split(":") for mount in mounts if mount.startswith("./")]
    assert len(ours) == 5
    for source, _, mode in ours:
        assert (TOP / source).exists(), source
        assert mode == "ro"


def test_no_secret_stands_in_the_compose_file(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY|STORE_URL", name):
                assert re.search(r"\$\{[A-Z_]+:\?[^}]+\}", value), name
    example = (TOP / ".env.example").read_text()
    for secret in SECRETS:
        assert re.search(rf"^{secret}=$", example, re.MULTILINE), secret


def interpolated(value: str) -> str:
    """What compose makes of a value, where only the secrets are set."""
    required = re.sub(r"\$\{([A-Z_]+):\?[^}]*\}", lambda m: SECRETS[m[1]], value)
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", required)


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: interpolated(value) for name, value in service["environment"].items()}


def test_the_mounted_configuration_is_valid_with_the_environment_of_compose(
    services: dict[str, Any],
) -> None:
    config = load(DEPLOY / "endpoint-monitor.yaml", environment(services["monitor"]))
    assert config.store_url == "postgresql://monitor:pg5ecret@postgres/monitor"
    assert services["postgres"]["environment"]["POSTGRES_USER"] == "monitor"
    assert services["postgres"]["environment"]["POSTGRES_DB"] == "monitor"
    (endpoint,) = config.endpoints.values()
    assert {probe.workload.kind for probe in config.probes} == {"chat", "models"}
    assert not endpoint.public


def test_the_demo_endpoint_is_what_the_monitor_is_pointed_at(services: dict[str, Any]) -> None:
    reference, monitor = services["reference"], services["monitor"]
    words = shlex.split(reference["command"])
    assert reference["profiles"] == ["demo"]
    assert reference["network_mode"] == "service:monitor"  # it listens on loopback only
    seen = environment(monitor)
    assert seen["ENDPOINT_URL"] == f"http://127.0.0.1:{words[words.index('--port') + 1]}/v1"
    assert seen["ENDPOINT_API_KEY"] == environment(reference)["ENDPOINT_API_KEY"]
    run(beside_python("python"), "-m", "probes.reference", "--help", PYTHONPATH=str(TOP))


def targets(config: Any) -> Iterator[str]:
    for job in config:
        for static in job["static_configs"]:
            yield from static["targets"]


def test_every_address_in_the_stack_is_a_service_of_it(services: dict[str, Any]) -> None:
    prometheus = yaml_of(PROMETHEUS / "prometheus.yml")
    addresses = [*targets(prometheus["scrape_configs"])]
    addresses += targets(prometheus["alerting"]["alertmanagers"])
    provisioning = TOP / "grafana" / "provisioning"
    (source,) = yaml_of(provisioning / "datasources" / "prometheus.yml")["datasources"]
    addresses.append(source["url"].removeprefix("http://"))
    assert len(addresses) == 3
    for address in addresses:
        host, _, port = address.partition(":")
        assert f"127.0.0.1:{port}:{port}" in services[host]["ports"], address
    scrape = prometheus["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape


def test_grafana_finds_the_dashboards_where_compose_mounts_them(services: dict[str, Any]) -> None:
    provider = yaml_of(TOP / "grafana" / "provisioning" / "dashboards" / "dashboards.yml")
    (found,) = provider["providers"]
    assert f"./grafana/dashboards:{found['options']['path']}:ro" in services["grafana"]["volumes"]


# --- systemd ----------------------------------------------------------------------------------


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = debian("systemd-analyze")
    # It looks for the program too, which is not installed where the unit says.
    copy = tmp_path / UNIT.name
    installed = "/opt/endpoint-monitor/bin/endpoint-monitor"
    assert installed in UNIT.read_text()
    copy.write_text(UNIT.read_text().replace(installed, "/bin/true"))
    assert run(analyze, "verify", "--man=no", copy) == ""


def test_the_unit_may_do_little() -> None:
    analyze = debian("systemd-analyze")
    said = run(analyze, "security", "--offline=yes", "--json=short", "--threshold=20", UNIT)
    checks = json.loads(said[said.index("[") : said.rindex("]") + 1])
    assert len(checks) > 50
