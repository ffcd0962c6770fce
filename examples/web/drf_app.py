"""An API with throttles: `python drf_app.py runserver`, or run it to see what it answers."""

from __future__ import annotations

import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.test import Client
from django.urls import path

settings.configure(
    SECRET_KEY="an example",
    DEBUG=True,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    LOGGING_CONFIG=None,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_THROTTLE_RATES": {"anon": "100/minute", "uploads": "2/minute"},
    },
)
django.setup()

from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from penstock.integrations.drf import AnonThrottle, ScopedThrottle  # noqa: E402


class Upload(APIView):  # type: ignore[misc]
    throttle_classes = (AnonThrottle, ScopedThrottle)
    throttle_scope = "uploads"

    def get(self, request: Any) -> Response:
        return Response({"uploaded": True})


urlpatterns = [path("uploads", Upload.as_view())]


def main() -> None:
    client = Client()
    for _ in range(3):
        answer = client.get("/uploads")
        print("/uploads", answer.status_code, answer["RateLimit"])


if __name__ == "__main__":
    execute_from_command_line(sys.argv) if len(sys.argv) > 1 else main()
