"""Whatever schemathesis makes of the OpenAPI document, the server does not fail, and its answers are as documented."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serve.http import send

CHECKS: list[Any] = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]


PATHS = "^/(v1|tokenize|detokenize|version)"


@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_any_request_is_answered_as_documented(url: str, mode: GenerationMode, examples: int) -> None:
    """(schemathesis' own pytest plug-in does not know this pytest.)"""
    document = schemathesis.openapi.from_url(f"{url}/openapi.json").include(path_regex=PATHS)
    tried = 0
    for operation in (result.ok() for result in document.get_all_operations()):
        if mode is GenerationMode.NEGATIVE and operation.method.upper() in ("GET", "DELETE"):
            continue  # there is nothing that could be wrong

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: Any) -> None:
            if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens", 1), int):
                case.body["max_tokens"] = min(case.body.get("max_tokens", 1), 4)  # long answers are of no interest here
            case.call_and_validate(checks=CHECKS)

        answered()
        tried += 1
    assert tried >= 4


def test_every_route_is_documented_without_422(url: str) -> None:
    paths = send(url + "/openapi.json")[1]["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize"} <= paths.keys()
    assert all("422" not in operation["responses"] for path in paths.values() for operation in path.values())
