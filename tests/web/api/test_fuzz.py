"""Requests inside and outside of the API's own description never get a 500."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.web.fleets import HOST, TOKEN, a_fleet, a_stand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    if TYPE_CHECKING:
        import schemathesis
    else:
        schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: the extra is fuzz")

stand = a_stand(jobs_for_everybody=True)
stand.post(a_fleet(6))
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", stand.application, headers={"Host": HOST, "Authorization": f"Bearer {TOKEN}"}
)


@pytest.mark.filterwarnings("ignore")
@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_by_500(case: schemathesis.Case[Any]) -> None:
    response = case.call(headers={"Host": HOST, "Authorization": f"Bearer {TOKEN}"})
    assert response.status_code in (200, 202, 400, 401, 404, 405, 409, 413, 503), response.text
    documented = case.operation.definition.raw["responses"]
    assert str(response.status_code) in documented or response.status_code in (404, 405), response.text
