"""The page about the service says what there is, and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from penstock.cli import COMMANDS
from penstock.cli._serve import configure
from penstock.cli._settings import Settings
from penstock.service.http._openapi import openapi
from penstock.service.http._pages import exposition
from tests.service.worlds import AWAY, service_on

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> str:
    """The first column of a section's table."""
    rows = [line for line in section(title).splitlines() if line.startswith("| `")]
    return "\n".join(re.split(r"(?<!\\\\)\|", row)[1] for row in rows)


def test_every_flag_of_serve_is_there() -> None:
    """And no flag that is not."""
    parser = argparse.ArgumentParser()
    configure(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    flags -= {"-h", "--help"}
    listed = set(re.findall(r"--[a-z-]+", first_cells("Flags")))
    # Those that close a server stand beside its port.
    assert flags - listed == {"--no-http", "--no-grpc"}
    assert listed <= flags
    assert {"--no-http", "--no-grpc"} <= set(re.findall(r"--[a-z-]+", section("Flags")))


def test_every_variable_of_serve_is_there() -> None:
    """And none that it does not look at."""
    parser = argparse.ArgumentParser()
    configure(parser)
    settings: Settings = parser.get_default("settings")
    assert sorted(re.findall(r"PENSTOCK_\w+", first_cells("Environment"))) == sorted(
        settings.variables
    )


def test_every_metric_is_there() -> None:
    """And no metric that is not: all families of a service that has done a bit of everything."""
    service, _ = service_on()
    asyncio.run(service.check("api", "k"))
    service.metrics.tally("api/user").count(True)
    service.metrics.latency("http").observe(0.1)
    service.metrics.grpc.codes["OK"] += 1
    service.entry("api").guard.outage(AWAY, ("k",), 1)
    names = ("connections", "strangers", "buffered_bytes", "in_flight", "shed_total")
    gauges = dict.fromkeys(names, 0)
    text = exposition(service.snapshot(), {200: 1}, gauges)
    told = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert set(re.findall(r"penstock_\w+", first_cells("Watching it"))) == told


def test_every_endpoint_is_there() -> None:
    """With its method, and none that is not described."""
    described = {
        f"{method.upper()} {path}"
        for path, methods in openapi()["paths"].items()
        for method in methods
    }
    assert set(re.findall(r"`([A-Z]+ /[^`]*)`", first_cells("Endpoints"))) == described


def test_every_command_is_there() -> None:
    """But for this page's own, and those for people who work on the package."""
    listed = set(re.findall(r"`penstock ([a-z-]+)", first_cells("Other commands")))
    assert listed == set(COMMANDS) - {"serve", "wire", "version"}
