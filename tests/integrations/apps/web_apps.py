"""A WSGI and an ASGI app with the same limit, for servers that run several processes of them."""

from __future__ import annotations

import os

import flask
from fastapi import Depends, FastAPI

from penstock.integrations import WebOptions
from penstock.integrations.fastapi import RateLimit, install
from penstock.integrations.flask import RateLimits

# On a slow machine an answer may take long; to let requests pass meanwhile would be right, and
# would not be what is tested.
OPTIONS: WebOptions = {"store": f"{os.environ['WEB_STORE']}?timeout_ms=60000", "fail": "error"}
LIMIT = "10/day"

wsgi = flask.Flask(__name__)
RateLimits(wsgi, LIMIT, exempt="/process", **OPTIONS)


@wsgi.route("/")
def home() -> str:
    return "home"


@wsgi.route("/process")
def process() -> str:
    return str(os.getpid())


asgi = FastAPI()
install(asgi, **OPTIONS)


@asgi.get("/", dependencies=[Depends(RateLimit(LIMIT, name="app"))])
async def async_home() -> str:
    return "home"


@asgi.get("/process")
async def async_process() -> int:
    return os.getpid()
