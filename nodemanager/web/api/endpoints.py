"""The list of all endpoints. ``openapi.json`` is made from it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodemanager.web.api import handlers
from nodemanager.web.api.control import Control
from nodemanager.web.api.handlers import Handler
from nodemanager.web.api.kubernetes_metrics import API_ROOT as METRICS_API
from nodemanager.web.api.openapi import Operation, Parameter
from nodemanager.web.state.access import Access, AccessCheck, allow_anybody
from nodemanager.web.state.range_figures import RANGE, RANGES_S


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. ``handler`` runs in a pool of threads."""

    method: str
    path: str
    summary: str
    handler: Handler
    access_check: AccessCheck = allow_anybody
    parameters: Sequence[Parameter] = ()
    statuses: Sequence[int] = (200, 400, 404, 503)
    body: Mapping[str, Any] | None = None

    @property
    def operation(self) -> Operation:
        secured = self.access_check is not allow_anybody
        statuses = {*self.statuses, 400, *((401, 403, 503) if secured else ())}
        return Operation(
            self.method, self.path, self.summary, self.parameters, sorted(statuses), secured, self.body
        )


# --- the list ---------------------------------------------------------------------------------------------

_AT = Parameter(
    "at",
    "query",
    "a time in seconds since the epoch: explain from the history why it was so then",
    {"type": "number"},
)
_HISTORY = Parameter("history", "query", "yes: also what the history has on it", {"type": "string"})
_LIMIT = Parameter("limit", "query", "the largest number of items to return", {"type": "integer"})
_RANGE = Parameter("range", "query", "how far back", {"type": "string", "enum": list(RANGES_S), "default": RANGE})
_NAME = Parameter("name", "path", "a slot or a launch", {"type": "string"})
_STEERING = (200, 202, 400, 404, 409)
_OPERATOR_BODY = handlers.OrderBody.model_json_schema()
_METRIC = Parameter("metric", "path", "a metric's name", {"type": "string"})
_NAMESPACE = Parameter("namespace", "path", "repeated in the answer", {"type": "string"})
_RESOURCE = Parameter("resource", "path", "ignored", {"type": "string"})
_OBJECT_NAME = Parameter("name", "path", "repeated in the answer", {"type": "string"})

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/status", "The overview: queue, nodes, cost, warnings", handlers.status),
    Endpoint("GET", "/nodes", "All nodes, with reasons", handlers.nodes),
    Endpoint("GET", "/fleet", "All nodes in a compact form", handlers.fleet),
    Endpoint(
        "GET", "/overview", "All that the overview of the dashboard shows", handlers.overview, parameters=[_RANGE]
    ),
    Endpoint("GET", "/history", "The fleet over time", handlers.history, parameters=[_RANGE]),
    Endpoint("GET", "/jobs", "The active jobs, with reasons", handlers.jobs, parameters=[_LIMIT]),
    Endpoint("GET", "/peers", "The instances in which jobs of this one may run", handlers.peers),
    Endpoint("GET", "/ensembles", "The ensembles that the service runs", handlers.ensembles),
    Endpoint(
        "GET",
        "/costs",
        "Costs by day, type, user and queue, from the history",
        handlers.costs,
        parameters=[Parameter("days", "query", "how many days, up to now", {"type": "number"})],
    ),
    Endpoint(
        "GET",
        "/explain/job/{name}",
        "Why a job waits",
        handlers.explain_job,
        Access.must_see_jobs,
        [Parameter("name", "path", "a job's id, in any of Flux's forms", {"type": "string"}), _AT, _HISTORY],
        (200, 400, 401, 404, 503),
    ),
    Endpoint(
        "GET",
        "/explain/node/{name}",
        "Why a node is kept or terminated",
        handlers.explain_node,
        parameters=[_NAME, _AT, _HISTORY],
    ),
    Endpoint(
        "GET",
        "/explain/type/{name}",
        "Why a node type is bought or not",
        handlers.explain_type,
        parameters=[Parameter("name", "path", "a node type", {"type": "string"}), _AT, _HISTORY],
    ),
    Endpoint(
        "GET",
        "/explain/ensemble/{name}",
        "Why nodes are kept for an ensemble or not",
        handlers.explain_ensemble,
        Access.must_see_jobs,
        [Parameter("name", "path", "an ensemble's name", {"type": "string"})],
        (200, 401, 404, 503),
    ),
    Endpoint("GET", "/plan", "The present plan, with reasons", handlers.plan),
    Endpoint(
        "POST",
        "/plan",
        "What another policy would order now; nothing is ordered",
        handlers.plan_with_policy,
        Access.must_steer,
        statuses=(200, 400, 413),
        body={"type": "object"},
    ),
    Endpoint("GET", "/events/recent", "Recent events, oldest first", handlers.recent_events,
             parameters=[_LIMIT]),
    Endpoint(
        "GET",
        "/report",
        "Cost by type, user and queue; waits, boots, failures",
        handlers.report,
        Access.must_see_jobs,
        [Parameter("since_s", "query", "how far back, in seconds", {"type": "number"})],
    ),
    Endpoint("GET", "/healthz", "503 if the last decision is late or a source is stale", handlers.healthz),
    Endpoint("GET", "/readyz", "503 until the service decides", handlers.readyz),
    Endpoint("GET", "/metrics", "Metrics for Prometheus", handlers.metrics),
    Endpoint("POST", "/hold/{name}", "Hold a node: it gets no new job and is not terminated",
             handlers.steering_handler(Control.hold), Access.must_steer, [_NAME], _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/replace/{name}", "Replace a node when its turn comes",
             handlers.steering_handler(Control.replace), Access.must_steer, [_NAME], _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/replace-all", "Replace all nodes, in turns",
             handlers.steering_handler(lambda control, _, order: control.replace_all("", order)),
             Access.must_steer, (), _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/replace-all/{name}", "Replace all nodes of a type, in turns",
             handlers.steering_handler(Control.replace_all), Access.must_steer,
             [Parameter("name", "path", "a node type", {"type": "string"})], _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/release/{name}", "Undo a hold, a retirement or a replacement",
             handlers.steering_handler(Control.release), Access.must_steer, [_NAME], _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/retire/{name}", "Drain a node, then terminate it",
             handlers.steering_handler(Control.retire), Access.must_steer, [_NAME], _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/pause", "Pause all decisions",
             handlers.steering_handler(lambda control, _, order: control.pause(order)),
             Access.must_steer, (), _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/resume", "Resume decisions",
             handlers.steering_handler(lambda control, _, order: control.resume(order)),
             Access.must_steer, (), _STEERING, _OPERATOR_BODY),
    Endpoint("POST", "/reload", "Reload the site; one with a fault changes nothing",
             handlers.steering_handler(lambda control, _, order: control.reload(order)),
             Access.must_steer, (), (200, 400, 409), _OPERATOR_BODY),
    Endpoint("GET", METRICS_API, "List the custom metrics for Kubernetes", handlers.custom_metrics),
    Endpoint("GET", METRICS_API + "/namespaces/{namespace}/metrics/{metric}", "A custom metric",
             handlers.custom_metric, parameters=[_NAMESPACE, _METRIC]),
    Endpoint("GET", METRICS_API + "/namespaces/{namespace}/{resource}/{name}/{metric}", "A custom metric",
             handlers.custom_metric, parameters=[_NAMESPACE, _RESOURCE, _OBJECT_NAME, _METRIC]),
    Endpoint("GET", METRICS_API + "/{resource}/{name}/{metric}", "A custom metric",
             handlers.custom_metric, parameters=[_RESOURCE, _OBJECT_NAME, _METRIC]),
)  # fmt: skip
