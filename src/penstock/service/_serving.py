"""`serve`: from options to a running service, in this process or, with more than one worker, in
several that a supervisor keeps."""

from __future__ import annotations

import asyncio
import logging

from ..config import PolicyFile
from ._banner import banner, print_banner
from ._logs import set_up_logs
from ._options import ServeOptions
from ._ports import require_free_ports
from ._running import Running, ignore_hangup, run_loop, until_told
from ._supervisor import Supervisor

__all__ = ["serve"]

_log = logging.getLogger("penstock.serve")


def serve(options: ServeOptions) -> int:
    """Serve until told to stop. Returns the exit code; raises `config_invalid` if it cannot."""
    file = options.check()
    options.token()
    options.fleet_secret()
    set_up_logs(options.log_format)
    if options.workers == 1:
        return run_loop(lambda: _serve_here(options, file))
    require_free_ports(options)
    return run_loop(Supervisor(options, file).run)


async def _serve_here(options: ServeOptions, file: PolicyFile) -> int:
    stop = asyncio.Event()
    ignore_hangup()
    running = Running(options, file)
    await running.open()
    print_banner(options, banner(options, running.service.policies, file.warnings))
    await until_told(stop)
    await running.close()
    _log.info("stopped")
    return 0
