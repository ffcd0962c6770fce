"""What the server needs, and what it does not."""

from __future__ import annotations

import subprocess
import sys

from penstock.core._errors import install_line

BLOCKED = """
import sys
sys.modules[{module!r}] = None
from penstock import ConfigInvalidError
try:
    import penstock.service.grpc
except ConfigInvalidError as error:
    print(error)
"""


def test_a_missing_package_is_an_error_that_names_the_extra() -> None:
    """The one that the server is built on."""
    module = "google.protobuf"
    command = [sys.executable, "-c", BLOCKED.format(module=module)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"which the extra 'server' brings: {install_line('server')}; or" in shown


def test_grpcio_is_not_needed_to_serve() -> None:
    """Nor what comes with it."""
    blocked = ("grpc", "grpc_health", "grpc_reflection", "grpc_status")
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in blocked)]
    command = [sys.executable, "-c", "\n".join([*lines, "import penstock.service.grpc"])]
    subprocess.run(command, check=True)
