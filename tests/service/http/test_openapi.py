"""The server and its description agree, on requests made from the description at random."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from penstock.config import parse_policies
from penstock.service.http._answers import CODES
from penstock.service.http._openapi import openapi
from tests.service.worlds import FILE
from tests.support.effort import count
from tests.support.variables import figure

from .serving import InProcessServer

schemathesis: Any = pytest.importorskip("schemathesis")
conformance: Any = pytest.importorskip("schemathesis.specs.openapi.checks")

# At random, for each operation; beside them come those that the tool works out, for the edges of
# every field. EXAMPLES=n in the environment looks further, and so does a long run.
FUZZ = settings(
    max_examples=figure("EXAMPLES", count(15, 100)),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    schemathesis.checks.not_a_server_error,
    *(
        getattr(conformance, name)
        for name in (
            "status_code_conformance",
            "content_type_conformance",
            "response_headers_conformance",
            "response_schema_conformance",
        )
    ),
]
# Which policy has the operation.
POLICY_OF = {"/v1/debit": "llm", "/v1/admit": "slots"}
FOR_OPERATORS = ("/v1/pause", "/v1/reset")


def with_real_policies() -> dict[str, Any]:
    """The document, with names of policies that are there, so that calls get past the name."""
    document = copy.deepcopy(openapi())
    real = {"type": "string", "enum": ["api"]}
    document["components"]["schemas"]["PolicyCheck"]["properties"]["policy"] = real
    for path, methods in document["paths"].items():
        for operation in methods.values():
            body = operation.get("requestBody", {"content": {"application/json": {}}})
            schema = body["content"]["application/json"].get("schema", {})
            for form in schema.get("oneOf", [schema]):
                if "policy" in form.get("properties", {}):
                    form["properties"]["policy"] = {
                        "type": "string",
                        "enum": [POLICY_OF.get(path, "api")],
                    }
    return document


schema = schemathesis.openapi.from_dict(with_real_policies())


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    policies = [*parse_policies(FILE.replace("api:", "default:"), "test").policies.values()]
    policies += [*parse_policies(FILE, "test").policies.values()]
    with InProcessServer(policies=policies) as server:
        yield server


def unsure(body: Any) -> bool:
    """Whether a body may be refused although a schema cannot say so: 1.0 is an integer to it, some
    limits are too much for some strategies, and attributes, costs and ids are those of the
    policy."""
    fields = body if isinstance(body, dict) else {}
    known = {"strategy", "attributes", "charge_id", "costs", "limits", "max_wait_ms"}
    return not known.isdisjoint(fields) or any(
        isinstance(value, float) for value in fields.values()
    )


@schema.parametrize()
@FUZZ
def test_requests_made_from_the_description_get_what_it_says(
    case: Any, server: InProcessServer
) -> None:
    """Status, type, headers and body; what breaks the description is refused with 4xx."""
    response = case.call(base_url=f"http://127.0.0.1:{server.port}")
    status = response.status_code
    # The tool does not know that what is too long is also refused.
    refusals = [] if status in (413, 431) else [conformance.negative_data_rejection]
    # What a policy's strategy does not have is told as 501, which is no fault.
    checks = CHECKS[1:] if status == 501 else CHECKS
    case.validate_response(response, checks=[*checks, *refusals])
    if case.path in FOR_OPERATORS:
        assert 400 <= status < 500, response.text
    elif case.meta.generation.mode.is_positive and not unsure(case.body):
        assert status in (200, 429), response.text
    if status >= 400 and status != 429:
        assert CODES[response.json()["code"]][0] == status


def test_every_problem_is_described() -> None:
    """Each code, under the status it comes with."""
    responses = openapi()["paths"]["/check"]["post"]["responses"]
    for code, (status, _meaning) in CODES.items():
        assert f"`{code}`" in responses[str(status)]["description"]
