"""The tools of the stack: found, run, and what they said."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.servers import require

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = TOP / "grafana" / "dashboards" / "overview.json"

VARIABLES = {"$endpoint": ".*", "$workload": ".*", "$window": "1h"}
"""What Grafana would put in place of the dashboard's variables."""


def debian(program: str) -> str:
    """The path of a program that a Debian package brings."""
    found = shutil.which(program)
    require(found, f"{program} (Debian packages prometheus, prometheus-alertmanager, systemd)")
    return str(found)


def beside_python(program: str) -> str:
    """The path of a program that a package of the development environment brings."""
    return str(Path(sys.executable).parent / program)


def run(*command: str | Path, feed: str | None = None, **env: str) -> str:
    """What a command that must succeed printed, on both ends."""
    done = subprocess.run(
        command,
        input=feed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def yaml_of(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def filled(expr: str, variables: Mapping[str, str] = VARIABLES) -> str:
    """A dashboard's query with its variables replaced."""
    for name, value in variables.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr
