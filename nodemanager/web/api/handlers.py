"""The handlers of the endpoints. They read the latest publication, the history and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nodemanager.actors.manager import Publication
from nodemanager.actors.user_names import user_name
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.history.events import HistoryEvent
from nodemanager.history.fleet_samples import FleetSample, sample_fleet
from nodemanager.history.store.reader import DAY_S, HistoryReader, HistoryUnreadable
from nodemanager.history.store.schema import SPEND_KEPT_S
from nodemanager.planner.plan import plan as make_plan
from nodemanager.planner.policy import Policy, scheduled_policy
from nodemanager.planner.spending import WHOLE_SITE
from nodemanager.web.api import documents, explain, kubernetes_metrics, panels
from nodemanager.web.api import overview as overview_documents
from nodemanager.web.api import peers as peer_documents
from nodemanager.web.api.control import Control, Order
from nodemanager.web.api.documents import Document, sources
from nodemanager.web.api.metrics import Metrics
from nodemanager.web.state.access import Access, RequestRefused
from nodemanager.web.state.board import Board
from nodemanager.web.state.range_figures import RANGE, RANGES_S, RangeCache, RangeFigures, chart_samples

SINCE_MIN_S = 1.0
BY_MAX = 64
WHY_MAX = 200


def _with_owners_of_budgets(document: object) -> object:
    """The policy as JSON, where each budget has its owner and period as key. JSON has only ``OWNER,PERIOD``."""
    if not isinstance(document, dict) or not isinstance(budgets := document.get("budgets"), dict):
        return document
    return {**document, "budgets": {tuple(str(key).rsplit(",", 1)): limit for key, limit in budgets.items()}}


POLICY: TypeAdapter[Policy] = TypeAdapter(Annotated[Policy, BeforeValidator(_with_owners_of_budgets)])


@dataclass(frozen=True, slots=True)
class WebContext:
    """What the handlers read and steer."""

    board: Board
    metrics: Metrics
    reader: HistoryReader
    control: Control
    access: Access
    job_end: Callable[[JobId], JobEnd | None] | None = None
    ranges: RangeCache = field(default_factory=RangeCache)


Handler = Callable[[WebContext, Request, bytes], Response]


# --- answers ----------------------------------------------------------------------------------------------


def _latest_publication(context: WebContext) -> Publication:
    posted = context.board.latest
    if posted is None:
        raise RequestRefused(503, "nothing is known yet: the service has just started")
    return posted.published


def json_response(document: object, status: int = 200) -> Response:
    """Answer with a JSON document."""
    return JSONResponse(document, status_code=status)


def status(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the overview, the costs so far, and the age of the data."""
    del request, body
    return json_response(_status_document(context, _latest_publication(context)))


def _status_document(context: WebContext, published: Publication) -> Document:
    document = documents.status(published)
    return {
        **document,
        "clouds": panels.clouds(published),
        "spent": {
            **_cost_document(context, document["at"]),
            "budgets": panels.budgets(published).get(WHOLE_SITE, []),
        },
        "journal": {
            "size_bytes": context.reader.size_bytes(),
            "size_max_bytes": context.reader.size_max_bytes,
            "failure": context.board.journal_failure(),
        },
        "silent_s": context.board.silent_s,
    }


def _cost_document(context: WebContext, now_at: float) -> Document:
    """The cost of today (UTC), from the history, which may be unreadable; and since this process started."""
    day_at = now_at // 86_400 * 86_400
    try:
        return {"today": context.reader.cost_since(day_at), "since_start": context.board.spent}
    except HistoryUnreadable:
        return {"today": None, "since_start": context.board.spent}


def nodes(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with all nodes."""
    del request, body
    published = _latest_publication(context)
    return json_response({"at": published.snapshot.wall_at, "nodes": documents.nodes(published)})


def fleet(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with all nodes in a compact form."""
    del request, body
    return json_response(documents.fleet(_latest_publication(context)))


def overview(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with all that the dashboard's overview shows."""
    del body
    published = _latest_publication(context)
    name, figures, samples = _range(context, request, published)
    now_at, shows_jobs = published.snapshot.wall_at, context.access.may_see_jobs(request)
    status = _status_document(context, published)
    status["spent"]["budgets"] = overview_documents.with_forecast(status["spent"]["budgets"], figures, now_at)
    is_large = len(published.snapshot.nodes) > overview_documents.STRIPS_MAX
    demand, demands = overview_documents.demand(published) if shows_jobs else ([], 0)
    view = context.board.delegation
    return json_response(
        {
            "at": now_at,
            "you": {"name": context.access.name(request), "may_steer": context.access.may_steer(request)},
            "status": status,
            "range": overview_documents.range_document(name, figures, samples[-1]),
            "samples": overview_documents.samples(samples),
            "types": overview_documents.types(published, figures),
            "nodes": None if is_large else documents.nodes(published),
            "fleet": documents.fleet(published) if is_large else None,
            "demand": {"shown": shows_jobs, "groups": demands, "first": demand},
            "peers": {
                **peer_documents.peers(view),
                "shown": shows_jobs,
                "delegated": overview_documents.delegated_jobs(published, view) if shows_jobs else [],
            },
            "ensembles": panels.ensembles(context.board, shown=shows_jobs),
        }
    )


def history(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the samples of the fleet over time."""
    del body
    name, figures, samples = _range(context, request, _latest_publication(context))
    return json_response(
        {"range": name, "failure": figures.failure, "samples": overview_documents.samples(samples)}
    )


def _range(
    context: WebContext, request: Request, published: Publication
) -> tuple[str, RangeFigures, list[FleetSample]]:
    """The range that a request names, its figures, and the samples of the fleet in it."""
    name = request.query_params.get("range", RANGE)
    if name not in RANGES_S:
        raise RequestRefused(400, f"range must be one of {', '.join(RANGES_S)}")
    figures = context.ranges.figures(name, published.snapshot.wall_at, context.reader)
    # The history thread makes the first sample a moment after the first publication.
    live = context.board.samples() or [sample_fleet(published)]
    return name, figures, chart_samples(figures.samples, live, RANGES_S[name])


def jobs(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the active jobs, or only their counts if the client may not see jobs."""
    del body
    published = _latest_publication(context)
    limit = int(_query_number(request, "limit", documents.JOBS_SHOWN, 0, 100_000))
    if context.access.may_see_jobs(request):
        document = documents.jobs(published, limit=limit)
        clock, view = documents.clock_of(published), context.board.delegation
        document["jobs"] = [peer_documents.with_delegation(job, view, clock) for job in document["jobs"]]
        return json_response({**document, "shown": True})
    return json_response({**documents.jobs_summary(published), "jobs": [], "unreadable": [], "shown": False})


def explain_job(context: WebContext, request: Request, body: bytes) -> Response:
    """Explain a job, now or at a past time."""

    def explain_now(published: Publication, name: str) -> Document:
        document = explain.job(published, name, context.reader, context.job_end)
        if document["job"] is None:
            return document
        clock = documents.clock_of(published)
        job = peer_documents.with_delegation(document["job"], context.board.delegation, clock)
        return {**document, "job": job, "reason": job["reason"] if job["delegated"] else document["reason"]}

    return _explain(context, request, body, "job", explain_now)


def peers(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the instances in which jobs of this one may run."""
    del request, body
    return json_response(peer_documents.peers(context.board.delegation))


def explain_node(context: WebContext, request: Request, body: bytes) -> Response:
    """Explain a node, now or at a past time."""
    return _explain(context, request, body, "node", explain.node)


def explain_type(context: WebContext, request: Request, body: bytes) -> Response:
    """Explain a node type, now or at a past time."""
    return _explain(context, request, body, "type", explain.node_type)


def explain_ensemble(context: WebContext, request: Request, body: bytes) -> Response:
    """Explain how many nodes are kept for an ensemble."""
    del body
    if "at" in request.query_params:
        raise RequestRefused(400, "the history has no nodes of ensembles: leave out --at")
    name, published = request.path_params["name"], _latest_publication(context)
    return json_response(explain.ensemble(published, context.board.node_claims, name, context.reader))


def _explain(
    context: WebContext, request: Request, body: bytes, kind: str, now: Callable[[Publication, str], Document]
) -> Response:
    del body
    name = request.path_params["name"]
    if "at" in request.query_params:
        at = _query_number(request, "at", 0.0, 0.0, 1e11)
        return json_response(explain.explain_past(context.reader, kind, name, at))
    document = now(_latest_publication(context), name)
    if request.query_params.get("history") == "yes":
        document = {**document, "history": explain.recent_history(context.reader, kind, document["subject"])}
    return json_response(document)


def plan(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the present plan."""
    del request, body
    return json_response(documents.plan(_latest_publication(context)))


def plan_with_policy(context: WebContext, request: Request, body: bytes) -> Response:
    """Plan with another policy on the present snapshot. Nothing is ordered."""
    del request
    published = _latest_publication(context)
    try:
        policy = POLICY.validate_json(body)
    except ValidationError as error:
        raise RequestRefused(
            400, f"not a valid policy: {error.error_count()} faults, the first: {_first_fault(error)}"
        ) from error
    policy = scheduled_policy(policy, published.snapshot.wall_at)
    made = make_plan(published.snapshot, policy)
    return json_response(documents.plan(Publication(published.snapshot, made, policy, acts=False)))


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def recent_events(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the latest events, those of single jobs only if the client may see jobs."""
    del body
    limit = int(_query_number(request, "limit", 200, 0, 2000))
    events = context.board.events_after(0, max(1, limit))
    if not context.access.may_see_jobs(request):
        events = [(number, event) for number, event in events if not event.of_job]
    return json_response({"events": [event_document(number, event) for number, event in events] if limit else []})


def event_document(number: int, event: HistoryEvent) -> Document:
    """Write one event of the history with its number."""
    return {
        "number": number,
        "at": event.at,
        "kind": event.kind,
        "subject": event.subject,
        "what": event.what,
        "node_type": event.node_type,
        "reason": documents.reason_fields(event.code, event.figures) if event.code else None,
        "figures": {name: documents.json_value(value) for name, value in event.figures.items()},
    }


def report(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the report since a time."""
    del body
    now_at = _latest_publication(context).snapshot.wall_at
    try:
        since_s = _query_number(request, "since_s", 7 * 86_400.0, SINCE_MIN_S, SPEND_KEPT_S)
    except RequestRefused as refused:
        kept = f"the history keeps costs for {SPEND_KEPT_S / 86_400:g} days"
        raise RequestRefused(
            400, f"{refused.why} (report --since: 1s to {SPEND_KEPT_S / 86_400:g}d): {kept}"
        ) from None
    document = context.reader.report(now_at - since_s, now_at)
    for row in document["by_user"]:
        row["user"] = user_name(row["userid"])
    return json_response(document)


def costs(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the costs of each of the last days, by users and queues too if the client may see jobs."""
    del body
    days = _query_number(request, "days", 14, 1, SPEND_KEPT_S / DAY_S)
    since_at = _latest_publication(context).snapshot.wall_at - (days - 1) * DAY_S
    rows = context.reader.cost_by_day(since_at)
    return json_response(panels.costs(rows, with_users=context.access.may_see_jobs(request)))


def ensembles(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the ensembles that the service runs, if the client may see jobs."""
    del body
    return json_response(panels.ensembles(context.board, shown=context.access.may_see_jobs(request)))


def healthz(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer 200 if the service is healthy, else 503."""
    del request, body
    well, document = check_health(context.board)
    return json_response(document, 200 if well else 503)


def readyz(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer 200 once the service decides, else 503."""
    del request, body
    well, document = check_readiness(context.board)
    return json_response(document, 200 if well else 503)


def metrics(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with the metrics for Prometheus."""
    del request, body
    return Response(context.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def custom_metrics(context: WebContext, request: Request, body: bytes) -> Response:
    """List the custom metrics for Kubernetes."""
    del context, request, body
    return json_response(kubernetes_metrics.metric_list())


def custom_metric(context: WebContext, request: Request, body: bytes) -> Response:
    """Answer with one custom metric for Kubernetes."""
    del body
    name = request.path_params["metric"]
    if name not in kubernetes_metrics.METRICS:
        raise RequestRefused(404, f"there is no metric {name}, only {', '.join(kubernetes_metrics.METRICS)}")
    namespace = request.path_params.get("namespace", "default")
    described = request.path_params.get("name", "node-manager")
    return json_response(kubernetes_metrics.metric_value(_latest_publication(context), name, namespace, described))


# --- steering ---------------------------------------------------------------------------------------------


def steering_handler(act: Callable[[Control, str, Order], Document]) -> Handler:
    """Make a handler of a method of ``Control``, which gets the node's name (or "") and the operator's order."""

    def answer(context: WebContext, request: Request, body: bytes) -> Response:
        done = act(context.control, request.path_params.get("name", ""), _order(context, request, body))
        return json_response(done, 200 if done.get("on_record", True) else 202)

    return answer


class OrderBody(BaseModel):
    """The body of a request that steers. ``by``: the operator's name, unless a named token proves another."""

    model_config = ConfigDict(extra="forbid", strict=True)

    by: Annotated[str, Field(min_length=1, max_length=BY_MAX)] = "operator"
    reason: Annotated[str, Field(max_length=WHY_MAX)] = ""
    until_at: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @field_validator("by", "reason")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError("printable characters are needed")
        return text


def _order(context: WebContext, request: Request, body: bytes) -> Order:
    try:
        given = OrderBody.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise RequestRefused(
            400,
            'the body must be {"by": NAME, "reason": TEXT, "until_at": SECONDS}, each key optional:'
            f" {_first_fault(error)}",
        ) from error
    caller = context.access.caller(request)
    by = caller.name if caller is not None and caller.name is not None else given.by
    return Order(by, given.reason, given.until_at)


def _query_number(request: Request, name: str, default: float, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise RequestRefused(400, f"{name} must be a number from {least:g} to {most:g}")
    return number


# --- the health checks: does the service decide, and on fresh data? For supervisors and load balancers ----


# A plan is made at least every ``actors.manager.SHOW_EVERY_S``, so a manager that is silent for this long is stuck.
DECISION_LATE_S = 15.0


def check_health(board: Board) -> tuple[bool, Document]:
    """Check that the last decision is recent and that no source is stale. After a start, sources get some time."""
    silent_s = board.silent_s
    document: Document = {"silent_s": round(silent_s, 3), "late": silent_s > DECISION_LATE_S, "stale": []}
    posted = board.latest
    if posted is not None:
        seen = sources(posted.published)
        grace_s = posted.published.policy.timing.stale_after_s
        starting = posted.posted_s - board.started_s < grace_s
        document["stale"] = [
            name for name, source in seen.items() if source["stale"] and not (starting and source["age_s"] is None)
        ]
        document["sources"] = seen
    well = not document["late"] and not document["stale"]
    return well, {"ok": well, **document}


def check_readiness(board: Board) -> tuple[bool, Document]:
    """Check that plans are made, and that operators can steer the manager that makes them.

    So the service holds or observes the instance, and every source has answered.
    """
    posted = board.latest
    if posted is None:
        return False, {"ok": False, "why": "nothing has been decided yet"}
    plan = posted.published.plan
    still = plan.stands_still if not plan.is_paused else None
    lost = posted.published.snapshot.operator.steering_lost
    why = lost or (str(plan.stands_still) if plan.stands_still is not None else "")
    well = still is None and not lost
    return well, {"ok": well, "why": why}
