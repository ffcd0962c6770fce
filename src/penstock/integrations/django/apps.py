"""The app for `INSTALLED_APPS`: a system check of the setting `PENSTOCK`, and the command."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import Error, Tags, Warning, register

from ...core._errors import PenstockError
from .._rules import app_limits
from ._limits import DjangoReader, options_of

__all__ = ["PenstockConfig"]


class PenstockConfig(AppConfig):  # type: ignore[misc]
    """`"penstock.integrations.django"` among the apps of a project."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "Rate limits"

    def ready(self) -> None:
        """Have the settings checked."""
        register(check_settings, Tags.security)


def check_settings(app_configs: Any, **_: Any) -> list[Any]:
    """What is wrong with the setting `PENSTOCK`. No store is opened for it."""
    given = getattr(settings, "PENSTOCK", {})
    try:
        _, options = options_of(given)
        app_limits(DjangoReader(), {**options, "store": None})
    except PenstockError as error:
        return [Error(str(error), hint="See the setting PENSTOCK.", id="penstock.E001")]
    if not options.get("store") and not settings.DEBUG:
        return [
            Warning(
                "Rate limits are kept in the memory of each process, so that each process has its "
                "own.",
                hint="Set PENSTOCK['STORE'], such as 'redis://localhost:6379'.",
                id="penstock.W001",
            )
        ]
    return []
