"""Limits as dependencies of FastAPI: nested, overridden, and in routes of one's own class."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from penstock import Verdict
from penstock.integrations.fastapi import RateLimit, install
from tests.integrations.serving import FIVE, ONE, TWO, client_of


def test_the_verdict_is_the_value_of_the_dependency() -> None:
    """And in the state of the request."""
    app = FastAPI()
    install(app)

    @app.get("/")
    def home(
        verdict: Annotated[Verdict, Depends(RateLimit(FIVE, name="home"))], request: Request
    ) -> dict[str, Any]:
        assert request.state.rate_limit is verdict
        return {"remaining": verdict.remaining, "binding": verdict.binding}

    with client_of(app) as client:
        assert client.get("/").json() == {"remaining": 4, "binding": "home"}


def test_a_limit_deep_in_other_dependencies_counts_too() -> None:
    """Once, however often the tree names it."""
    limit = Depends(RateLimit(TWO))

    def user(verdict: Any = limit) -> str:
        return "alice"

    name_of_user = Depends(user)

    def admin(name: str = name_of_user, again: Any = limit) -> str:
        return name

    name_of_admin = Depends(admin)
    app = FastAPI()
    install(app)

    @app.get("/", dependencies=[Depends(RateLimit(FIVE, name="route"))])
    def home(name: str = name_of_admin) -> str:
        return name

    with client_of(app) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_overridden_dependencies_limit_nothing() -> None:
    """As tests of an app do it: also where another limit decides first."""
    strict = RateLimit(ONE)
    app = FastAPI(dependencies=[Depends(RateLimit(FIVE))])
    install(app)
    app.add_api_route("/", lambda: 1, dependencies=[Depends(strict)])
    app.dependency_overrides[strict] = lambda: None
    with client_of(app) as client:
        assert [client.get("/").status_code for _ in range(6)] == [200] * 5 + [429]


def test_an_override_holds_for_a_route_that_has_served_before() -> None:
    """What stands in for the limit is called, and may refuse."""
    strict = RateLimit(FIVE)
    app = FastAPI(dependencies=[Depends(strict)])
    install(app)
    app.add_api_route("/", lambda: 1)

    def refuse() -> None:
        raise HTTPException(418)

    with client_of(app) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
        app.dependency_overrides[strict] = refuse
        assert [client.get("/").status_code for _ in range(3)] == [418] * 3
        app.dependency_overrides.clear()
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_a_limit_behind_another_dependency_is_asked_after_it() -> None:
    """For every request: its key may be what the other one left."""

    def sign_in(request: Request) -> None:
        request.state.user = request.headers["x-user"]

    limit = RateLimit(TWO, key=lambda request: request.state.user)
    app = FastAPI(dependencies=[Depends(sign_in), Depends(limit)])
    install(app)
    app.add_api_route("/", lambda: 1)
    with client_of(app) as client:
        codes = [client.get("/", headers={"x-user": user}).status_code for user in ("a", "b") * 3]
    assert codes == [200, 200, 200, 200, 429, 429]


def test_a_custom_route_class_serves_as_before() -> None:
    """FastAPI lets apps have one, around the handler."""

    class Marked(APIRoute):
        def get_route_handler(self) -> Any:
            inner = super().get_route_handler()

            async def handler(request: Request) -> Response:
                response: Response = await inner(request)
                response.headers["x-marked"] = "yes"
                return response

            return handler

    router = APIRouter(route_class=Marked, dependencies=[Depends(RateLimit(TWO))])
    router.add_api_route("/{n}", lambda n: n)
    app = FastAPI()
    app.include_router(router, prefix="/v1")
    install(app)
    with client_of(app) as client:
        answers = [client.get(f"/v1/{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.get("x-marked") for answer in answers] == ["yes", "yes", None]
