"""A Django project with limits: `python django_app.py runserver`, or run it to see what it answers.

Its commands are those of any project: `python django_app.py penstock list`.
"""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

settings.configure(
    SECRET_KEY="an example",
    DEBUG=True,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    LOGGING_CONFIG=None,
    INSTALLED_APPS=["penstock.integrations.django"],
    MIDDLEWARE=["penstock.integrations.django.LimitMiddleware"],
    PENSTOCK={"LIMITS": ["100/minute"]},
)
django.setup()

from penstock.integrations.django import rate_limited  # noqa: E402


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello\n")


@rate_limited("2/minute")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found\n")


urlpatterns = [path("", home), path("search", search)]


def main() -> None:
    client = Client()
    for asked in ("/", "/search", "/search", "/search"):
        answer = client.get(asked)
        print(asked, answer.status_code, answer["RateLimit"])


if __name__ == "__main__":
    execute_from_command_line(sys.argv) if len(sys.argv) > 1 else main()
