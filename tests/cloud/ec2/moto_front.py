"""EC2 by independent authors: moto over real HTTP on loopback, behind a front that adds the features moto lacks.

moto's namespace lacks its last slash. moto starts and ends instances at once, ignores client tokens, checks no
signature, and refuses nothing. The front corrects the namespace and adds boot times, tokens, signatures, limits,
refusals, and lost or mangled replies.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.cloud.ec2.moto_faults import Fault, InstanceBucket, Parameters, Received, Refused
from tests.cloud.ec2.moto_groups import MotoGroups
from tests.cloud.ec2.sigv4 import is_signed

REGION = "us-east-1"
IMAGE = "ami-03cf127a"  # one of moto's images; by default its one volume outlives the instance
SECRETS = {"AKIAEXAMPLE": "an-example-secret"}
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
USER_DATA_MAX_BYTES = 16_384

_ACCOUNTS = itertools.count(200_000_000_000)
_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error>'
    "</Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections alive, like EC2

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        pass


class MotoFront:
    """A new EC2 account in one region. Its settings are attributes that a test may change at any time."""

    def __init__(self) -> None:
        self.account = str(next(_ACCOUNTS))
        self.boot_delay_s = 0.0
        self.stop_delay_s = 0.0
        self.visible_delay_s = 0.0
        self.page_max = 1_000
        self.capacity: int | None = None
        self.quota: int | None = None
        self.cpu_quotas: dict[str, float] | None = None  # by the name in Service Quotas; None: not allowed
        self.throttling = False
        self.bucket: InstanceBucket | None = None
        self.faults: list[Fault] = []
        self.groups = MotoGroups(NAMESPACE, lambda: {made.placement.group_name for made in self.standing()})
        self.calls: Counter[str] = Counter()
        self.received: list[Received] = []
        self.wall_at: Callable[[], float] = time.time
        self.on_running: Callable[[Any], None] = lambda _: None
        self.on_end: Callable[[Any], None] = lambda _: None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._tokens: dict[str, tuple[Parameters, tuple[str, ...]]] = {}
        self._due: list[tuple[float, str, str]] = []  # (time, instance, its next state)
        self._hidden_until: dict[str, float] = {}
        self._events: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Handler)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        ec2_backends.pop(self.account, None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- what a test sees and does, past every fault ---

    @property
    def backend(self) -> Any:
        return ec2_backends[self.account][REGION]

    def instances(self) -> dict[str, Any]:
        """Every instance ever created, by its id, as moto's object."""
        return {
            made.id: made for reservation in self.backend.reservations.values() for made in reservation.instances
        }

    def standing(self) -> list[Any]:
        return [made for made in self.instances().values() if made._state.name != "terminated"]

    def user_data(self, instance: str) -> bytes:
        return base64.b64decode(str(self.instances()[instance].user_data or ""))

    def end(self, instance: str, code: str, message: str) -> None:
        """Let an instance end by itself, with a code such as "Server.SpotInstanceTermination"."""
        with self._lock:
            made = self.instances()[instance]
            was = made._state.name
            made.terminate()  # its volumes and interfaces are deleted with it
            made.state_reason.code, made.state_reason.message = code, f"{code}: {message}"
            if was == "running":
                self._events.append((self.on_end, made))

    def move(self) -> None:
        """Apply the state changes that are due, then notify listeners outside of the front's own lock."""
        with self._lock:
            self._move()
        while self._events:
            tell, made = self._events.popleft()
            tell(made)

    # --- the wire ---

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        headers = {
            name[5:].lower().replace("_", "-"): text for name, text in environ.items() if name[:5] == "HTTP_"
        }
        headers["content-type"] = environ.get("CONTENT_TYPE", "")
        if "x-amz-target" in headers:
            return self._list_quotas(start_response, headers, body)
        parameters = dict(parse_qsl(environ["QUERY_STRING"]) + parse_qsl(body.decode(), keep_blank_values=True))
        call = Received(
            parameters["Action"], environ["REQUEST_METHOD"], environ["QUERY_STRING"], headers, parameters
        )
        with self._lock:  # moto's stores are not thread-safe
            self.calls[call.action] += 1
            self.received.append(call)
            self._move()
            fault = self._next_fault(parameters)
            try:
                self._refuse(call, body, fault)
                content = self._carry_out(environ, parameters)
            except Refused as refused:
                return _send(
                    start_response,
                    refused.status,
                    refused.headers,
                    _ERROR.format(refused.code, refused.message).encode(),
                )
        if fault is not None and fault.lost:
            environ["werkzeug.socket"].shutdown(2)
            raise ConnectionAbortedError("the reply is lost")
        if fault is not None and fault.rewrite is not None:
            content = fault.rewrite(content)
        return _send(start_response, 200, {}, content)

    def _list_quotas(self, start_response: Any, headers: Mapping[str, str], body: bytes) -> Iterable[bytes]:
        """Service Quotas, of which moto knows only those of VPCs: one quota a page, in the documented form."""
        assert headers["x-amz-target"] == "ServiceQuotasV20190624.ListServiceQuotas"
        asked = json.loads(body)
        assert asked["ServiceCode"] == "ec2"
        status = 200
        answer: dict[str, Any]
        if not is_signed("POST", headers, body, SECRETS):
            status, answer = 403, {"__type": "InvalidSignatureException", "message": "Check your key."}
        elif self.cpu_quotas is None:
            status, answer = 400, {"__type": "AccessDeniedException", "message": "not authorized to perform"}
        else:
            at = int(asked.get("NextToken", 0))
            names = list(self.cpu_quotas)
            quotas = [{"QuotaName": names[at], "Value": self.cpu_quotas[names[at]], "Unit": "None"}]
            answer = {"Quotas": quotas, **({"NextToken": str(at + 1)} if at + 1 < len(names) else {})}
        return _send(start_response, status, {}, json.dumps(answer).encode())

    def _next_fault(self, parameters: Parameters) -> Fault | None:
        for fault in self.faults:
            if fault.concerns(parameters):
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return fault
        return None

    def _refuse(self, call: Received, body: bytes, fault: Fault | None) -> None:
        # Stock libcloud sends GET. Pass it to moto, which checks nothing.
        if call.method == "POST" and not is_signed("POST", call.headers, body, SECRETS):
            raise Refused("SignatureDoesNotMatch", "Check your key and signing method.", 403)
        if self.throttling:
            raise Refused("RequestLimitExceeded", "Request limit exceeded.", 503)
        if fault is not None and fault.code:
            raise Refused(fault.code, "as the test has it", fault.status, fault.headers)
        asked = int(call.parameters.get("MaxResults", 5))
        if not 5 <= asked <= 1_000:
            raise Refused("InvalidParameterValue", f"MaxResults is {asked}")

    def _carry_out(self, environ: dict[str, Any], parameters: Parameters) -> bytes:
        match parameters["Action"]:
            case "RunInstances":
                return self._run_instances(environ, parameters)
            case "TerminateInstances":
                content = self._moto_says(environ, parameters)
                for name, instance in parameters.items():
                    if name.startswith("InstanceId."):
                        self._end_on_request(instance)
                return content
            case "DescribeInstances":
                if "MaxResults" in parameters:  # moto's default page has 100 reservations
                    parameters = {
                        **parameters,
                        "MaxResults": str(min(int(parameters["MaxResults"]), self.page_max)),
                    }
                return self._without_hidden(self._moto_says(environ, parameters))
            case "CreatePlacementGroup" | "DescribePlacementGroups" | "DeletePlacementGroup":
                return self.groups.answer(parameters)
            case _:
                return self._moto_says(environ, parameters)

    def _moto_says(self, environ: dict[str, Any], parameters: Parameters) -> bytes:
        """Return moto's reply in EC2's namespace. Raises a refusal in EC2's form."""
        body = urlencode(parameters).encode()
        asked = {
            **environ,
            "REQUEST_METHOD": "POST",
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/x-www-form-urlencoded; charset=utf-8",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_X_MOTO_ACCOUNT_ID": self.account,
            "wsgi.input": io.BytesIO(body),
        }
        said: list[str] = []
        content = b"".join(self._moto(asked, lambda status, *_: said.append(status)))
        if not said[0].startswith("2"):
            code, message = (
                re.search(rb"<%s>(.*?)</%s>" % (name, name), content) for name in (b"Code", b"Message")
            )
            assert code is not None, content
            assert message is not None, content
            raise Refused(code[1].decode(), message[1].decode(), int(said[0].split()[0]))
        return content.replace(f'xmlns="{NAMESPACE}"'.encode(), f'xmlns="{NAMESPACE}/"'.encode(), 1)

    # --- instances ---

    def _run_instances(self, environ: dict[str, Any], parameters: Parameters) -> bytes:
        token = parameters.get("ClientToken", "")
        if not token.isascii() or len(token) > 64:
            raise Refused("InvalidParameterValue", "a ClientToken has up to 64 ASCII characters")
        if token in self._tokens:
            before, instances = self._tokens[token]
            if before != parameters:
                raise Refused("IdempotentParameterMismatch", "the token came with other parameters before")
            return self._as_they_stand(environ, instances)
        self._check_launch(parameters)
        count = str(self._count_to_create(parameters))
        known = self.instances().keys()
        self._moto_says(environ, {**parameters, "MinCount": count, "MaxCount": count})
        created = {id_: made for id_, made in self.instances().items() if id_ not in known}
        for instance, made in created.items():
            made.placement.group_name = parameters.get("Placement.GroupName", "")
            made.launch_time = datetime.fromtimestamp(self.wall_at(), UTC)
            for interface in made.nics.values():
                interface.delete_on_termination = True
                interface.add_tags({tag["key"]: tag["value"] for tag in made.get_tags()})
            self._hidden_until[instance] = time.monotonic() + self.visible_delay_s
            made._state.name, made._state.code = "pending", 0
            self._due.append((time.monotonic() + self.boot_delay_s, instance, "running"))
        if token:
            self._tokens[token] = parameters, tuple(created)
        return self._as_they_stand(environ, tuple(created))

    def _count_to_create(self, parameters: Parameters) -> int:
        """Return how many instances can be had, MaxCount at most. Refuse the call if that is less than MinCount."""
        count = len(self.standing())
        most = int(parameters["MaxCount"])
        within_quota = most if self.quota is None else min(most, self.quota - count)
        if within_quota < int(parameters["MinCount"]):
            raise Refused("VcpuLimitExceeded", f"{count} instances stand")
        granted = within_quota if self.capacity is None else min(within_quota, self.capacity - count)
        if granted < int(parameters["MinCount"]):
            raise Refused("InsufficientInstanceCapacity", "none is left", 500)
        if self.bucket is not None and not self.bucket.take(most):
            raise Refused("RequestLimitExceeded", "Request limit exceeded.", 503)
        return granted

    def _check_launch(self, parameters: Parameters) -> None:
        if len(base64.b64decode(parameters.get("UserData", ""))) > USER_DATA_MAX_BYTES:
            raise Refused("InvalidParameterValue", "User data is limited to 16384 bytes")
        tags = {text for name, text in parameters.items() if name.endswith(".Value")}
        if any(len(text) > 256 for text in tags):
            raise Refused("InvalidParameterValue", "Tag value exceeds the maximum length of 256 characters")
        if "Placement.GroupName" in parameters:
            self.groups.require(parameters["Placement.GroupName"])

    def _as_they_stand(self, environ: dict[str, Any], instances: Iterable[str]) -> bytes:
        """Return the reply to RunInstances with the instances' current states, even for a repeated call."""
        named = {f"InstanceId.{number}": instance for number, instance in enumerate(instances, start=1)}
        asked = {"Action": "DescribeInstances", "Version": "2016-11-15", **named}
        content = self._moto_says(environ, asked)
        inner = re.search(rb"<reservationSet><item>(.*)</item></reservationSet>", content, re.DOTALL)
        assert inner is not None, content
        return f'<RunInstancesResponse xmlns="{NAMESPACE}/">'.encode() + inner[1] + b"</RunInstancesResponse>"

    def _end_on_request(self, instance: str) -> None:
        made = self.instances()[instance]
        if self.stop_delay_s and made._state.name == "terminated":
            made._state.name, made._state.code = "shutting-down", 32
            self._due.append((time.monotonic() + self.stop_delay_s, instance, "terminated"))
        self._events.append((self.on_end, made))

    def _move(self) -> None:
        now_s = time.monotonic()
        due = [entry for entry in self._due if entry[0] <= now_s]
        self._due = [entry for entry in self._due if entry[0] > now_s]
        instances = self.instances() if due else {}
        for _, instance, state in due:
            made = instances[instance]
            if (made._state.name, state) in (("pending", "running"), ("shutting-down", "terminated")):
                self._enter(made, state)

    def _enter(self, made: Any, state: str) -> None:
        made._state.name, made._state.code = state, {"running": 16, "terminated": 48}[state]
        if state == "running":
            self._events.append((self.on_running, made))

    def _without_hidden(self, content: bytes) -> bytes:
        now_s = time.monotonic()
        hidden = {instance for instance, until_s in self._hidden_until.items() if until_s > now_s}
        if not hidden:
            return content
        ns = f"{{{NAMESPACE}/}}"
        ET.register_namespace("", f"{NAMESPACE}/")
        root = ET.fromstring(content)  # noqa: S314 - from moto, in this process
        reservations = root.find(f"{ns}reservationSet")
        assert reservations is not None
        for reservation in list(reservations):
            if reservation.findtext(f"{ns}instancesSet/{ns}item/{ns}instanceId") in hidden:
                reservations.remove(reservation)
        return ET.tostring(root)


def _send(start_response: Any, status: int, headers: Mapping[str, str], content: bytes) -> list[bytes]:
    # The same as EC2's and moto's, except for the charset, which only EC2 sends.
    sent = [("Content-Type", "text/xml"), ("Content-Length", str(len(content))), *headers.items()]
    start_response(f"{status} {'OK' if status == 200 else 'Refused'}", sent)
    return [content]
