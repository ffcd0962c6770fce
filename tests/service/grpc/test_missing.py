"""Without the extra, the error names it."""

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
