#!/usr/bin/env python3
"""flux-node-join: joins this machine to a Flux instance as one of its slots, and keeps it joined.

The client sends its ticket to the join service, receives a broker's start data, and starts the broker. When the
broker ends, the client starts it again, as long as the service says that the slot belongs to this node. If the
manager has been silent for too long, and no job runs here, the client powers the machine off. The protocol is in
doc/joining.md.

The client is one file. It needs Python 3.8 or later and only the standard library. At the first start it reads its
settings from the environment (FLUX_NODE_JOIN_*), later from join.json in the node's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Tuple

CALL_TIMEOUT_S = 10.0
ANSWER_MAX_BYTES = 4 * 1024 * 1024
HANG_UP_AFTER_S = 0.1  # a request that is due sooner uses the connection of the one before
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
STEADY_S = 60.0  # after a broker has run this long, the pauses between starts begin at the shortest again
BROKER_STOP_S = 5.0  # time for a broker to stop cleanly; it ignores SIGTERM if its leader has died
DRAIN_TIMEOUT_S = 5.0
STEP_MAX_S = 1.0
SHELL_EMPTY_MAX_S = 300.0  # a job shell that has had no task for this long is waiting for a dead rank 0
LOG_TAIL_MAX_BYTES = 1500
REPORTS_MAX = 20
NOTICE_EVERY_S = 5.0  # how often to ask whether the provider reclaims this node; EC2 gives two minutes' notice
NOTICE_TIMEOUT_S = 1.0
IDENTITY_TIMEOUT_S = 10.0  # Google signs a token when it is asked for
METADATA_SERVICE = "http://169.254.169.254"
HOSTS_BEGIN = "# flux-node-join: begin"
HOSTS_END = "# flux-node-join: end"

LOCAL_NODE = "FNM_NODE"  # in the environment of a node that is processes on the manager's machine

EXIT_SETTINGS = 78

# Refusals of a ticket that no further try can change.
FINAL_REFUSALS = ("wrong", "expired", "used", "malformed", "too_large")


class JoinRefused(Exception):
    """The service refused a request. ``code`` is its error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class JoinUnreachable(Exception):
    """No address of the service answered."""


class CannotJoin(Exception):
    """This machine cannot join. The text tells the image's author why."""


class ClientSettings:
    """The settings from the user-data."""

    def __init__(self, values: Dict[str, str]) -> None:
        self.values = values
        # All nodes of a batch have the same settings. Such a node learns its launch by proving its identity.
        self.batch = values.get("BATCH") or ""
        self.launch = "" if self.batch else values["LAUNCH"]
        self.ticket = values["TICKET"]
        self.addresses = values["ADDRESSES"].split()
        self.fingerprint = values["FINGERPRINT"].lower()
        self.folder = Path(os.path.abspath(values["DIR"]))
        self.hosts_file = Path(os.path.abspath(values["HOSTS"]))
        self.poweroff = values["POWEROFF"]
        self.silence_max_s = float(values["SILENCE_MAX_S"])
        self.flux = values.get("FLUX") or "flux"
        self.user = values.get("USER") or ""
        self.systemd = values.get("SYSTEMD") == "yes"
        self.imp = values.get("IMP") or ""  # starts guests' jobs; "": the instance admits no guests
        self.notice = values.get("NOTICE") or ""  # the provider whose metadata service announces a reclaim, or ""
        self.metadata = values.get("METADATA") or METADATA_SERVICE
        self.machine = parse_marks(values.get("MACHINE") or "")  # the machine that saved the settings; {}: unknown
        self.shell_empty_max_s = float(values.get("SHELL_EMPTY_MAX_S") or SHELL_EMPTY_MAX_S)


def purpose_of(batch: str, nonce_hash: str) -> str:
    """Return the only use of an identity: one node's request to join with the ticket of a batch."""
    return "{}/{}".format(batch, nonce_hash)


def google_audience(fingerprint: str, purpose: str) -> str:
    """Return the audience of an identity token: the join service with this certificate, and the purpose."""
    return "flux-node-join://{}/{}".format(fingerprint, purpose)


# --- decisions --------------------------------------------------------------------------------------------


class JoinClient:
    """Decides, step by step, how a node joins the instance, stays joined, and ends.

    It acts only through ``machine``. A step never waits. It returns the seconds until the next step, or None when
    the node has ended.
    """

    def __init__(self, machine: Any, launch: str, ticket: str, silence_max_s: float, batch: str = "") -> None:
        self.machine = machine
        self.ticket = ticket
        self.batch = batch
        self.silence_max_s = silence_max_s
        self.instance = machine.instance()  # names this process: the service lets only one start a broker
        saved = machine.load()
        self.nonce = str(saved.get("nonce") or "")
        self.lease_key = str(saved.get("lease_key") or "")
        self.launch = str(saved.get("launch_in_batch") or "") if batch else launch
        now_s = machine.now_s()
        # The manager that created this node was alive just now.
        self.manager_heard_s = now_s
        self.lease_missing_s: Optional[float] = None  # since when the service has not known this launch
        self.orphan_grace_s = silence_max_s
        self.renew_s = 10.0
        self.call_due_s = now_s
        self.call_pause_s = RETRY_FIRST_S
        self.start_due_s = now_s
        self.start_pause_s = RETRY_FIRST_S
        self.started_s: Optional[float] = None  # when the running broker was started
        self.start_data: Dict[str, Any] = {}  # fresh data for starting a broker; {} until it is fetched
        self.running_digest = ""  # the digest of the material that the running broker was started with
        self.survivors = ""  # the processes of jobs that have survived their broker, as last reported
        self.hosts_digest = ""
        self.notice_due_s = now_s
        self.reclaimed = ""  # the provider's notice that it will reclaim this node
        self.why_cannot_join = ""  # why this machine will never join
        # The first report is the machine's hardware. The manager compares it with the slot's declaration.
        measured = machine.measured()
        self.reports: List[Tuple[str, str]] = [("measured", json.dumps(measured))] if measured else []
        self.ended = False
        if machine.is_a_copy():
            self._give_up("this disk is a copy of another node's disk, and this machine must not act as that node")

    def step(self) -> Optional[float]:
        """Do everything that is due now. Return the seconds until the next step, None when the node has ended."""
        now_s = self.machine.now_s()
        self._check_broker(now_s)
        if self._should_end(now_s):
            self._end()
            return None
        self._check_reclaim_notice(now_s)
        if now_s >= self.call_due_s:
            self._call(now_s)
        if self._may_start(self.machine.now_s()):
            self._start(self.machine.now_s())
        now_s = self.machine.now_s()
        wait_s: float = min(self.call_due_s - now_s, STEP_MAX_S)
        return max(0.01, wait_s)

    # --- the service ---

    def _call(self, now_s: float) -> None:
        try:
            self._exchange()
        except JoinUnreachable as error:
            self.machine.log("the join service cannot be reached: {}".format(error))
            self._call_later(now_s)
        except JoinRefused as refusal:
            self._handle_refusal(refusal.code, now_s)
        except (KeyError, TypeError, ValueError, OSError) as error:
            # The answer is malformed or the disk is full. That must not harm a job that runs here.
            self.machine.log("the call failed: {!r}".format(error))
            self._call_later(now_s)
        else:
            self.lease_missing_s = None
            self.call_pause_s = RETRY_FIRST_S
            now_s = self.machine.now_s()
            # Add jitter, or nodes created together would call together forever.
            self.call_due_s = now_s + self.renew_s * self.machine.uniform(0.8, 1.2)
            if self._waits_to_start() and now_s < self.start_due_s:
                self.call_due_s = min(self.call_due_s, self.start_due_s)

    def _exchange(self) -> None:
        if not self.lease_key:
            self._redeem()
        elif self._waits_to_start() and self.machine.now_s() >= self.start_due_s:
            # Fetch just before each start: the slot's node or the certificate may have changed.
            self._accept_start_data(self._ask("fetch", {"key": self.lease_key}))
        else:
            self._renew()
        self._send_reports()

    def _redeem(self) -> None:
        if not self.nonce:
            self.nonce = self.machine.nonce()
            self._save()  # before sending it: after a crash the service must recognise this node
        proof = {"ticket": self.ticket, "nonce": self.nonce}
        if self.batch:
            # What the provider signs is for this request only, if the provider lets an instance choose.
            purpose = purpose_of(self.batch, hashlib.sha256(self.nonce.encode()).hexdigest())
            proof.update(batch=self.batch, identity=self.machine.identity(purpose))
        answer = self._ask("redeem-batch" if self.batch else "redeem", proof)
        self.launch = str(answer["launch"]) if self.batch else self.launch
        self.lease_key = str(answer["lease_key"])
        self._save()
        self._accept_start_data(answer)

    def _renew(self) -> None:
        answer = self._ask("renew", {"key": self.lease_key, "hosts_digest": self.hosts_digest})
        self._accept_status(answer)
        is_outdated = self.running_digest and answer["material"] != self.running_digest
        if is_outdated and not answer["online"] and not self.machine.job_runs():
            # With the outdated material, such as a former certificate, this broker would wait forever to join.
            self._report("ended", "the broker was stopped: its material, such as the certificate, has changed")
            self._stop_broker()

    def _accept_start_data(self, answer: Dict[str, Any]) -> None:
        self._accept_status(answer)
        try:
            self.machine.check(answer)
        except CannotJoin as error:
            self.why_cannot_join = str(error)
            self._report("failed", self.why_cannot_join)
            return
        self.start_data = answer if answer["may_start"] else {}

    def _accept_status(self, answer: Dict[str, Any]) -> None:
        self.renew_s = max(0.05, float(answer["renew_s"]))
        self.orphan_grace_s = float(answer["orphan_grace_s"])
        self.manager_heard_s = max(
            self.manager_heard_s, self.machine.now_s() - max(0.0, float(answer["manager_silence_s"]))
        )
        if answer.get("hosts") is not None:
            self.machine.write_hosts(answer["hosts"])
            self.hosts_digest = str(answer["hosts_digest"])

    def _handle_refusal(self, code: str, now_s: float) -> None:
        if code == "not_current" and self.lease_key:
            # The lease has ended, or the roster is being rebuilt. Start no broker meanwhile.
            self.start_data = {}
            self.machine.log("the join service refuses: not_current; the slot no longer belongs to this node")
            if self.lease_missing_s is None:
                self.lease_missing_s = now_s
        elif code in FINAL_REFUSALS and not self.lease_key:
            self._give_up("the join service refuses the ticket: " + code)
            return
        else:
            self.machine.log("the join service refuses: " + code)
        self._call_later(now_s)

    def _give_up(self, why: str) -> None:
        """Send no more requests. The node ends after the maximum silence of the manager."""
        self.why_cannot_join = why
        self.machine.log(why + "; this node does not join")
        self.call_due_s = self.machine.now_s() + 10 * 365 * 86400.0

    def _call_later(self, now_s: float) -> None:
        self.call_due_s = max(now_s, self.machine.now_s()) + self.call_pause_s * self.machine.uniform(0.5, 1.0)
        self.call_pause_s = min(RETRY_MAX_S, 2 * self.call_pause_s)

    def _report(self, phase: str, detail: str) -> None:
        self.machine.log("{}: {}".format(phase, detail))
        self.reports = [*self.reports, (phase, detail)][-REPORTS_MAX:]
        self.call_due_s = min(self.call_due_s, self.machine.now_s())

    def _send_reports(self) -> None:
        """Send the reports in order. Keep a report if the service is busy. Drop it if the service rejects it."""
        while self.reports:
            phase, detail = self.reports[0]
            try:
                self._ask("report", {"key": self.lease_key, "phase": phase, "detail": detail})
            except JoinRefused as refusal:
                if refusal.code in ("too_many", "unavailable"):
                    return
            self.reports.pop(0)

    def _ask(self, what: str, body: Dict[str, Any]) -> Dict[str, Any]:
        answer: Dict[str, Any] = self.machine.ask(what, dict(body, launch=self.launch, instance=self.instance))
        return answer

    def _save(self) -> None:
        state = {"nonce": self.nonce, "lease_key": self.lease_key}
        self.machine.save(dict(state, launch_in_batch=self.launch) if self.batch else state)

    # --- the broker ---

    def _waits_to_start(self) -> bool:
        return self.started_s is None and not self.why_cannot_join

    def _may_start(self, now_s: float) -> bool:
        due = bool(self.start_data) and self._waits_to_start() and now_s >= self.start_due_s
        return due and not self._survivors()

    def _survivors(self) -> str:
        """End what earlier brokers have left behind, and tell what cannot be ended: no job may begin beside it."""
        left = str(self.machine.end_survivors())
        if left and left != self.survivors:
            self._report("ended", "the broker starts once these processes of other users have ended: " + left)
        self.survivors = left
        return left

    def _start(self, now_s: float) -> None:
        given, self.start_data = self.start_data, {}
        try:
            self.machine.start_broker(given)
        except CannotJoin as error:
            self.why_cannot_join = str(error)
            self._report("failed", self.why_cannot_join)
            return
        except (KeyError, OSError) as error:
            self._note_broker_end(now_s)
            self._report("ended", "the broker did not start: {!r}".format(error))
            return
        self.started_s = now_s
        self.running_digest = str(given["material"])
        self._report("started", "as {}".format(given["slot"]))

    def _check_broker(self, now_s: float) -> None:
        """Note whether the broker has ended. It ends with rank 0, and is restarted forever with growing pauses."""
        if self.started_s is None:
            return
        status = self.machine.broker_status()
        if status is None:
            return
        self._note_broker_end(now_s)
        self._report("ended", "the broker ended with {}\n{}".format(status, self.machine.broker_tail()))

    def _note_broker_end(self, now_s: float) -> None:
        was_steady = self.started_s is not None and now_s - self.started_s >= STEADY_S
        self.start_pause_s = RETRY_FIRST_S if was_steady else self.start_pause_s
        self.start_due_s = now_s + self.start_pause_s * self.machine.uniform(0.5, 1.0)
        self.start_pause_s = min(RETRY_MAX_S, 2 * self.start_pause_s)
        self.started_s = None
        self.running_digest = ""
        self.start_data = {}
        self.call_due_s = min(self.call_due_s, now_s)

    def _stop_broker(self) -> None:
        self.machine.stop_broker()
        self._note_broker_end(self.machine.now_s())

    def _check_reclaim_notice(self, now_s: float) -> None:
        """Report the provider's notice that it will reclaim this spot node, while there is time to drain it."""
        if self.reclaimed or now_s < self.notice_due_s:
            return
        self.notice_due_s = now_s + NOTICE_EVERY_S
        self.reclaimed = self.machine.reclaim_notice()
        if self.reclaimed:
            self._report("reclaimed", self.reclaimed)

    # --- the end ---

    def _should_end(self, now_s: float) -> bool:
        silent = now_s - self.manager_heard_s >= self.silence_max_s
        orphaned = self.lease_missing_s is not None and now_s - self.lease_missing_s >= self.orphan_grace_s
        if not (silent or orphaned) or self.machine.job_runs():
            return False
        # If rank 0 is alive, it may assign a job at this very moment. So drain the rank first, then check again.
        self.machine.drain("flux-node-manager:" + self.launch)
        return not self.machine.job_runs()

    def _end(self) -> None:
        self.machine.log("the manager is silent or the slot is lost, and no job runs: this node ends")
        self.ended = True
        self.leave()
        self.machine.power_off()

    def leave(self) -> None:
        """Stop the broker and remove the client's lines from the hosts file."""
        self.machine.stop_broker()
        self.started_s = None
        self.machine.write_hosts({})


# --- this machine -----------------------------------------------------------------------------------------


class LocalMachine:
    """This machine: its clock, files and processes, and its connection to the join service.

    :class:`JoinClient` acts only through it. Tests and the simulator replace it.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.broker: Optional[subprocess.Popen[bytes]] = None
        self.rundir = ""
        self.sessions: List[int] = []  # of all brokers that were started; their jobs' processes are in them
        self.shells_empty_s: Optional[float] = None  # since when jobs have had shells but no tasks
        self.first_address = 0
        self.kept: Optional[PinnedConnection] = None  # the connection of the request before, until hang_up()
        self.metadata_token = ""

    def now_s(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between two limits."""
        return random.uniform(low, high)

    def nonce(self) -> str:
        """Return a new nonce for the ticket."""
        return secrets.token_hex(32)

    def instance(self) -> str:
        """Return a new random name for this process."""
        return secrets.token_hex(16)

    def is_a_copy(self) -> bool:
        """Return whether the settings in the node's folder were saved on another machine."""
        return not is_same_machine(self.settings.machine, machine_marks())

    def log(self, text: str) -> None:
        """Write a line to standard error."""
        sys.stderr.write("flux-node-join: {}\n".format(text))
        sys.stderr.flush()

    def measured(self) -> Dict[str, int]:
        """Return this machine's cores, threads, GPUs and memory; {} if they cannot be read."""
        try:
            processors = os.sched_getaffinity(0)
            return {
                "cores": count_cores(processors),
                "threads": len(processors),
                "gpus": count_gpus(),
                "memory_bytes": memory_bytes(),
            }
        except (OSError, ValueError) as error:
            self.log("this machine's hardware cannot be read: {!r}".format(error))
            return {}

    # --- files ---

    def load(self) -> Dict[str, Any]:
        """Return the saved nonce and lease key; {} if there are none, or if they belong to another node."""
        try:
            saved = json.loads((self.settings.folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        # The file belongs to another launch if the image was made from a node that had joined. It belongs to
        # another machine if the disk was copied. In both cases its secrets must not be used.
        if not isinstance(saved, dict) or saved.get("launch") != (self.settings.launch or self.settings.batch):
            return {}
        return saved if is_same_machine(parse_marks(saved.get("machine")), machine_marks()) else {}

    def save(self, state: Dict[str, Any]) -> None:
        """Save the nonce and the lease key."""
        saved = dict(state, launch=self.settings.launch or self.settings.batch, machine=machine_marks())
        write_private(self.settings.folder / "state.json", json.dumps(saved))

    def write_hosts(self, hosts: Dict[str, str]) -> None:
        """Replace the client's lines in the hosts file, and nothing else. Without hosts, remove those lines."""
        path = self.settings.hosts_file
        try:
            before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
            after = with_hosts(before, hosts)
            if after != before:
                replace_or_overwrite(path, after)
        except OSError as error:
            self.log("{} cannot be written: {}".format(path, error.strerror))

    # --- the service ---

    def ask(self, what: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """Send a request to the service. Try each address, first the one that answered last.

        Raises :class:`JoinRefused` or :class:`JoinUnreachable`.
        """
        faults = []
        count = len(self.settings.addresses)
        for index in range(count):
            position = (self.first_address + index) % count
            address = self.settings.addresses[position]
            try:
                answer = self.post(address, "/v1/" + what, body)
            except (OSError, ssl.SSLError, http.client.HTTPException, ValueError) as error:
                faults.append("{}: {}".format(address, error))
                continue
            self.first_address = position
            return answer
        raise JoinUnreachable("; ".join(faults))

    def post(self, address: str, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """Send a request, over the connection of the request before if there is one. Raises as post_json does.

        The service closes a connection that was silent for some seconds, such as while a broker was stopped. So a
        request that fails on a kept connection is sent once more, over a new one.
        """
        kept, self.kept = self.kept, None
        if kept is not None and kept.address == address:
            try:
                return self.post_and_keep(kept, path, body)
            except (ConnectionError, ssl.SSLError):
                pass
        elif kept is not None:
            kept.close()
        return self.post_and_keep(PinnedConnection(address, self.settings.fingerprint), path, body)

    def post_and_keep(self, connection: PinnedConnection, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        """Send a request over a connection, and keep the connection if there was an answer."""
        try:
            answer = post_over(connection, path, body)
        except BaseException:
            connection.close()
            raise
        self.kept = connection
        return answer

    def hang_up(self) -> None:
        """Close the connection to the service. The next request makes another one."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None

    def reclaim_notice(self) -> str:
        """Return the provider's notice that it will reclaim this node; "" if there is none or it is unreadable."""
        readers = {"ec2": self.ec2_notice, "gce": self.gce_notice, "azure": self.azure_notice}
        read = readers.get(self.settings.notice)
        try:
            return read() if read is not None else ""
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
            return ""

    def ec2_notice(self) -> str:
        """Read the notice by IMDSv2. The document does not exist (404) until EC2 decides to reclaim the node."""
        status, text = self.ec2_metadata("/latest/meta-data/spot/instance-action")
        if status != 200:
            return ""
        action = json.loads(text)
        return "{} at {}".format(action["action"], action["time"])

    def identity(self, purpose: str) -> str:
        """Return what the provider signs to vouch for this instance. Raises OSError if it cannot be read."""
        read = self.gce_identity if self.settings.notice == "gce" else self.ec2_identity
        try:
            status, text = read(purpose)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError("the metadata service gives no identity: {!r}".format(error)) from error
        if status != 200:
            raise OSError("the metadata service gives no identity: status {}".format(status))
        return text

    def ec2_identity(self, purpose: str) -> Tuple[int, str]:
        """Ask for the document that EC2 signs. It is the same for every purpose."""
        del purpose
        return self.ec2_metadata("/latest/dynamic/instance-identity/rsa2048")

    def gce_identity(self, purpose: str) -> Tuple[int, str]:
        """Ask for a token that Google signs for the node's join service and this purpose."""
        audience = urllib.parse.quote(google_audience(self.settings.fingerprint, purpose), safe="")
        path = "/computeMetadata/v1/instance/service-accounts/default/identity?audience={}&format=full"
        status, text = self.metadata(
            "GET", path.format(audience), {"Metadata-Flavor": "Google"}, timeout_s=IDENTITY_TIMEOUT_S
        )
        return status, text.strip()

    def ec2_metadata(self, path: str) -> Tuple[int, str]:
        """Query EC2's metadata service by IMDSv2. Return the status and the text."""
        if not self.metadata_token:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            self.metadata_token = self.metadata("PUT", "/latest/api/token", lifetime)[1]
        status, text = self.metadata("GET", path, {"X-aws-ec2-metadata-token": self.metadata_token})
        if status == 401:
            self.metadata_token = ""  # it has expired
        return status, text

    def gce_notice(self) -> str:
        """Read whether Compute Engine has preempted this instance."""
        flavor = {"Metadata-Flavor": "Google"}
        status, text = self.metadata("GET", "/computeMetadata/v1/instance/preempted", flavor)
        return "preempted" if status == 200 and text.strip() == "TRUE" else ""

    def azure_notice(self) -> str:
        """Read the scheduled events. They cover all machines of a set, so look for this machine's name."""
        header = {"Metadata": "true"}
        status, text = self.metadata("GET", "/metadata/scheduledevents?api-version=2020-07-01", header)
        if status != 200:
            return ""
        events = [it for it in json.loads(text)["Events"] if it["EventType"] in ("Preempt", "Terminate")]
        if not events:
            return ""
        path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        name = self.metadata("GET", path, header)[1].strip()
        mine = [it for it in events if name in it["Resources"]]
        return "{} not before {}".format(mine[0]["EventType"], mine[0].get("NotBefore") or "now") if mine else ""

    def metadata(
        self, method: str, path: str, headers: Dict[str, str], timeout_s: float = NOTICE_TIMEOUT_S
    ) -> Tuple[int, str]:
        """Query the provider's metadata service without a proxy. Return the status and the text."""
        host = self.settings.metadata.split("//", 1)[-1]
        service = http.client.HTTPConnection(host, timeout=timeout_s)
        try:
            service.request(method, path, headers=headers)
            answer = service.getresponse()
            return answer.status, answer.read(ANSWER_MAX_BYTES).decode("utf-8")
        finally:
            service.close()

    # --- the broker ---

    def check(self, given: Dict[str, Any]) -> None:
        """Check whether this machine can run a broker of the instance. Raises :class:`CannotJoin`."""
        installed = self.flux_version()
        if installed != given["flux_version"]:
            raise CannotJoin(
                "this node's image has flux-core {}, rank 0 runs {}: all brokers must have exactly one version; "
                "build the image with flux-core {}".format(installed, given["flux_version"], given["flux_version"])
            )
        uid, name = self.broker_user()
        if uid != given["owner_uid"]:
            raise CannotJoin(
                "rank 0 belongs to uid {}, this node would run its broker as {} (uid {}): set [Join] node_user to "
                "the owner of the instance, with the same uid here".format(given["owner_uid"], name, uid)
            )

        if self.settings.imp:
            self.check_imp(self.settings.imp)

    def check_imp(self, imp: str) -> None:
        """Check whether this machine can start guests' jobs. Raises :class:`CannotJoin`."""
        try:
            found = os.stat(imp)
        except OSError as error:
            raise CannotJoin(
                "the instance admits guests, and {} cannot be found here: {}; install flux-security in the image, "
                "with the path that [exec] imp of the instance names".format(imp, error.strerror)
            ) from error
        if found.st_uid != 0 or not found.st_mode & stat.S_ISUID:
            raise CannotJoin(
                "the instance admits guests, and {} is not setuid root here: run chown root, then chmod u+s on it "
                "in the image".format(imp)
            )

    def flux_version(self) -> str:
        """Return the version of the installed flux-core. Raises :class:`CannotJoin`."""
        try:
            output = subprocess.run(
                [self.settings.flux, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=20,
                check=False,
                env=clean_environment(),
            ).stdout.decode(errors="replace")
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotJoin(
                "{} cannot be run: {}; install flux-core in the image, or set [Join] flux to its path".format(
                    self.settings.flux, error
                )
            ) from error
        version = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\S*", output)
        return version.group(0) if version else "of unknown version"

    def broker_user(self) -> Tuple[int, str]:
        """Return the uid and the name of the user that runs the broker. Raises :class:`CannotJoin`."""
        if not self.settings.user:
            return os.getuid(), "the user of its user-data"
        try:
            return pwd.getpwnam(self.settings.user).pw_uid, self.settings.user
        except KeyError as error:
            user = self.settings.user
            raise CannotJoin(
                "this node has no user {}: create it in the image, or change [Join] node_user".format(user)
            ) from error

    def start_broker(self, given: Dict[str, Any]) -> None:
        """Write the broker's configuration and start it. Raises :class:`CannotJoin`, KeyError or OSError."""
        uid, _ = self.broker_user()
        self.clear_rundir()
        self.rundir = tempfile.mkdtemp(prefix="flux-slot.")
        conf = self.settings.folder / "conf.d"
        certificate = self.settings.folder / "curve.cert"
        if uid == os.getuid():
            conf.mkdir(mode=0o700, exist_ok=True)
        else:
            # Jobs may run as the broker's user. So that user may read these files, but root owns their folders.
            own_folder(os.path.realpath(str(self.settings.folder)), 0o711)
            own_folder(str(conf), 0o755)
            os.chown(self.rundir, uid, -1)
        if self.settings.imp:
            self.open_rundir()
        write_private(certificate, str(given["curve_cert"]), uid)
        write_private(conf / "flux.toml", flux_toml(given["bootstrap"], str(certificate)), uid)
        values = {"flux": self.settings.flux, "conf": str(conf), "rundir": self.rundir}
        command = [
            re.sub(r"\{(\w+)\}", lambda match: values.get(match.group(1), match.group(0)), part)
            for part in given["command"]
        ]
        with os.fdopen(new_file(str(self.log_file()), 0o600), "wb") as log:
            try:
                self.broker = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.broker_environment(uid),
                    preexec_fn=self.become_user if uid != os.getuid() else None,
                    start_new_session=True,
                )
            except OSError as error:
                raise CannotJoin("{} cannot be run: {}".format(command[0], error)) from error
        self.sessions.append(self.broker.pid)
        if LOCAL_NODE in os.environ:  # to end this node, all these sessions must end
            sessions = Path(os.path.dirname(self.rundir)) / "sessions"
            sessions.write_text("".join("{}\n".format(session) for session in self.sessions))

    def end_survivors(self) -> str:
        """Kill the processes of earlier brokers' jobs. Return those of other users that remain; "" if none do."""
        own = [self.broker.pid] if self.broker is not None else []
        sessions = [session for session in self.sessions if session not in own]
        left = {}
        for pid in session_members(sessions):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                pass
            left[pid] = True
        members = [pid for pid in session_members(sessions) if pid in left] if left else []
        return ", ".join("process {} of uid {}".format(pid, owner_of(pid)) for pid in members)

    def open_rundir(self) -> None:
        """Let guests' jobs reach the broker's socket. A local node has its own folder for temporary files above."""
        above = os.path.dirname(self.rundir)
        mode = os.stat(above).st_mode
        if os.stat(above).st_uid == os.getuid() and not mode & stat.S_IWOTH:
            os.chmod(above, stat.S_IMODE(mode) | 0o011)
        os.chmod(self.rundir, 0o755)

    def broker_environment(self, uid: int) -> Dict[str, str]:
        """Return the environment for a broker that runs as this uid."""
        environment = clean_environment()
        if uid != os.getuid():
            entry = pwd.getpwnam(self.settings.user)
            environment.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
        return environment

    def become_user(self) -> None:
        """Switch this process to the broker's user. Runs in the child between fork and exec."""
        entry = pwd.getpwnam(self.settings.user)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    def broker_status(self) -> Optional[str]:
        """Return None while the broker runs, or else how it ended."""
        if self.broker is None:
            return "nothing"
        status = self.broker.poll()
        if status is None:
            return None
        self.broker = None
        self.clear_rundir()
        return "status {}".format(status) if status >= 0 else "signal {}".format(-status)

    def broker_tail(self) -> str:
        """Return the last lines of the broker's log."""
        try:
            with open(str(self.log_file()), "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_MAX_BYTES))
                return log.read(LOG_TAIL_MAX_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""

    def log_file(self) -> Path:
        """Return the path of the broker's log."""
        return self.settings.folder / "broker.log"

    def stop_broker(self) -> None:
        """Stop the broker: SIGTERM, and SIGKILL after ``BROKER_STOP_S``."""
        broker, self.broker = self.broker, None
        if broker is not None and broker.poll() is None:
            broker.terminate()
            try:
                broker.wait(BROKER_STOP_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()
        self.clear_rundir()

    def clear_rundir(self) -> None:
        """Delete the broker's run directory."""
        if self.rundir:
            shutil.rmtree(self.rundir, ignore_errors=True)
            self.rundir = ""

    def drain(self, reason: str) -> None:
        """Tell the scheduler to assign no more jobs here. If rank 0 is dead, this fails, and no job can arrive."""
        if self.broker is None:
            return
        environment = dict(clean_environment(), FLUX_URI="local://{}/local".format(self.rundir))
        uid, _ = self.broker_user()
        try:
            rank = self.flux_output(["getattr", "rank"], environment, uid)
            self.flux_output(["resource", "drain", rank, reason], environment, uid)
        except (OSError, subprocess.SubprocessError) as error:
            self.log("not drained: {}".format(type(error).__name__))

    def flux_output(self, arguments: List[str], environment: Dict[str, str], uid: int) -> str:
        """Run a flux command as the broker's user and return its output."""
        return (
            subprocess.run(
                [self.settings.flux, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=DRAIN_TIMEOUT_S,
                check=True,
                env=environment,
                preexec_fn=self.become_user if uid != os.getuid() else None,
            )
            .stdout.decode()
            .strip()
        )

    def job_runs(self) -> bool:
        """Return whether a job has a process here. Reads the kernel's process table, because Flux needs rank 0.

        A shell without a task may be about to start one, so it counts as a job for a while. But if rank 0 is dead,
        the shell waits forever to report the end of its tasks.
        """
        tasks, empty_shells = job_processes(self.broker.pid, self.rundir) if self.broker is not None else ([], [])
        if tasks or not empty_shells:
            self.shells_empty_s = None
            return bool(tasks)
        if self.shells_empty_s is None:
            self.shells_empty_s = self.now_s()
        return self.now_s() - self.shells_empty_s < self.settings.shell_empty_max_s

    # --- the end ---

    def power_off(self) -> None:
        """Run the command that ends this machine."""
        environment = dict(clean_environment(), FLUX_NODE_JOIN_PARENT=str(os.getppid()))
        subprocess.run(["/bin/sh", "-c", self.settings.poweroff], env=environment, check=False)


# --- the connection to the service ------------------------------------------------------------------------


class PinnedConnection(http.client.HTTPSConnection):
    """A TLS connection that checks the fingerprint of the server's certificate before it sends anything."""

    def __init__(self, address: str, fingerprint: str) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # connect() checks the fingerprint instead
        super().__init__(host.strip("[]"), int(port), timeout=CALL_TIMEOUT_S, context=context)
        self.address = address
        self.fingerprint = fingerprint

    def connect(self) -> None:
        """Connect, and check the server's certificate. Raises ConnectionError if it is another one."""
        super().connect()
        certificate = self.sock.getpeercert(binary_form=True)
        if not certificate or hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            self.close()
            raise ConnectionError("it has another certificate than the one in this node's settings")


def post_json(address: str, fingerprint: str, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
    """Send one request and return the answer. Raises JoinRefused, and OSError or ValueError without an answer."""
    connection = PinnedConnection(address, fingerprint)
    try:
        return post_over(connection, path, body)
    finally:
        connection.close()


def post_over(connection: PinnedConnection, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
    """Send one request over a connection, as post_json does."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read(ANSWER_MAX_BYTES + 1)
    answer = json.loads(raw.decode())
    if len(raw) > ANSWER_MAX_BYTES or not isinstance(answer, dict):
        raise ValueError("its answer is malformed")
    if response.status != 200:
        raise JoinRefused(str(answer.get("error", response.status)))
    return answer


# --- the machine's hardware -------------------------------------------------------------------------------

# PCI classes. 3D controllers, display controllers and accelerators are GPUs from any vendor. A VGA controller is a
# GPU if NVIDIA or AMD made it. Any other one only shows a console.
GPU_CLASSES = ("0x0302", "0x0380", "0x1200")
VGA_CLASS = "0x0300"
GPU_VENDORS = ("0x10de", "0x1002")


def count_cores(processors: Iterable[int]) -> int:
    """Count the cores of these hardware threads. Without topology data, each thread counts as one core."""
    cores = set()
    for processor in processors:
        topology = Path("/sys/devices/system/cpu/cpu{}/topology".format(processor))
        try:
            core = tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id"))
        except OSError:
            core = (str(processor),)
        cores.add(core)
    return len(cores)


def count_gpus(devices: Path = Path("/sys/bus/pci/devices"), nodes: Path = Path("/dev")) -> int:
    """Count GPUs on the PCI bus, or by their device nodes, because a container may see only those."""
    on_bus = 0
    for device in devices.iterdir() if devices.is_dir() else ():
        try:
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
        except OSError:
            continue
        on_bus += kind[:6] in GPU_CLASSES or (kind[:6] == VGA_CLASS and vendor in GPU_VENDORS)
    by_node = sum(1 for name in os.listdir(str(nodes)) if re.match(r"^nvidia[0-9]+$", name))
    return max(on_bus, by_node)


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the machine's memory."""
    found = re.search(r"^MemTotal:\s+([0-9]+) kB$", meminfo.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("no MemTotal in {}".format(meminfo))
    return int(found.group(1)) * 1024


# --- the machine's identity ------------------------------------------------------------------------------

# Ids that a copied disk does not carry over, the most reliable first: the hypervisor's id of the machine, readable
# by root; the provider's id, which cloud-init writes before the network is up; the system's id, which many copies
# share.
MARKS = (
    ("hypervisor", "/sys/class/dmi/id/product_uuid"),
    ("provider", "/var/lib/cloud/data/instance-id"),
    ("system", "/etc/machine-id"),
)


def machine_marks(root: Path = Path("/")) -> Dict[str, str]:
    """Return the ids that distinguish this machine from others, as far as they can be read."""
    found = {name: read_mark(root / path[1:]) for name, path in MARKS}
    return {name: text for name, text in found.items() if text}


def read_mark(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def is_same_machine(one: Dict[str, str], other: Dict[str, str]) -> bool:
    """Compare the most reliable id that both have. Without a common id, they count as the same machine."""
    for name, _ in MARKS:
        if name in one and name in other:
            return one[name] == other[name]
    return True


def parse_marks(saved: Any) -> Dict[str, str]:
    """Return saved ids, given as JSON or as an object; {} for anything else."""
    if isinstance(saved, str):
        try:
            saved = json.loads(saved)
        except ValueError:
            return {}
    return {str(name): str(text) for name, text in saved.items()} if isinstance(saved, dict) else {}


# --- the kernel's process table ---------------------------------------------------------------------------


def job_processes(broker: int, rundir: str) -> Tuple[List[int], List[int]]:
    """Return the pids of a broker's jobs: their processes, and separately their shells without a child.

    Every child of the broker belongs to a job, except housekeeping and modules. So does a task that has outlived
    its shell, which is recognised by its environment.
    """
    parents = {}
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        fields = read_proc(pid, "stat").rpartition(b")")[2].split()
        if len(fields) >= 2 and fields[0] not in (b"Z", b"X"):
            parents[pid] = int(fields[1])
    tasks, empty_shells = [], []
    for pid, parent in parents.items():
        if parent == broker:
            command = read_proc(pid, "cmdline")
            if is_shell(command) and pid not in parents.values():
                empty_shells.append(pid)
            elif command and not is_broker_helper(command):
                tasks.append(pid)
        elif rundir and is_task(read_proc(pid, "environ"), rundir):
            tasks.append(pid)
    return tasks, empty_shells


def session_members(sessions: List[int]) -> List[int]:
    """Return the pids of the living processes in these sessions."""
    members = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()] if sessions else []:
        fields = read_proc(pid, "stat").rpartition(b")")[2].split()
        if len(fields) >= 4 and fields[0] not in (b"Z", b"X") and int(fields[3]) in sessions:
            members.append(pid)
    return members


def owner_of(pid: int) -> str:
    """Return the uid of a process; "?" if it has ended."""
    try:
        return str(os.stat("/proc/{}".format(pid)).st_uid)
    except OSError:
        return "?"


def is_shell(command: bytes) -> bool:
    """Return whether a command line is a Flux job shell."""
    return os.path.basename(command.split(b"\0")[0]) == b"flux-shell"


def is_broker_helper(command: bytes) -> bool:
    """Return whether a broker's child serves the broker: housekeeping, a module, a startup or shutdown script."""
    words = [os.path.basename(word) for word in command.split(b"\0")[:4]]
    return any(
        b"housekeeping" in word or word.startswith((b"flux-module-", b"modprobe", b"rc1", b"rc3")) for word in words
    )


def is_task(environ: bytes, rundir: str) -> bool:
    """Return whether a process with this environment is a task of the instance whose rundir is given."""
    variables = environ.split(b"\0")
    return b"FLUX_URI=local://" + os.fsencode(rundir) + b"/local" in variables and any(
        variable.startswith(b"FLUX_TASK_RANK=") for variable in variables
    )


def read_proc(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; b"" if it cannot be read."""
    try:
        with open("/proc/{}/{}".format(pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


# --- files ------------------------------------------------------------------------------------------------


def write_private(path: Path, text: str, uid: int = -1) -> None:
    """Replace a file atomically, with mode 0600: a reader gets the old or the new text."""
    os.replace(write_draft(path, text.encode("utf-8"), 0o600, uid), str(path))


def replace_or_overwrite(path: Path, text: str) -> None:
    """Replace a file that others read, and keep its mode. If it is a mount point, overwrite its content instead."""
    data = text.encode("utf-8", errors="surrogateescape")
    draft = write_draft(path, data, os.stat(str(path)).st_mode & 0o777 if path.exists() else 0o644)
    try:
        os.replace(draft, str(path))
    except OSError:  # a container's hosts file is a mount point: it can be written but not replaced
        os.unlink(draft)
        with open(str(path), "r+b") as file:
            file.write(data)
            file.truncate()


def write_draft(path: Path, data: bytes, mode: int, uid: int = -1) -> str:
    """Write a draft next to the file that it will replace, and return its path.

    The owner is set through the open descriptor, because another file may be moved to the draft's path.
    """
    draft = "{}.flux-node-join".format(path)
    with os.fdopen(new_file(draft, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fchown(file.fileno(), uid, -1)
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    return draft


def new_file(path: str, mode: int) -> int:
    """Create a file and return its descriptor. An existing file or link at that path is removed, never followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def own_folder(path: str, mode: int) -> None:
    """Create a folder, or take over an existing one, so that only this process's user can write in it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(folder, os.getuid(), -1)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def with_hosts(before: str, hosts: Dict[str, str]) -> str:
    """Return a hosts file with the client's block replaced and moved to its end. Without hosts, it has no block."""
    lines: List[str] = []
    inside = False
    for line in before.splitlines():
        if line == HOSTS_BEGIN:
            inside = True
        elif line == HOSTS_END:
            inside = False
        elif not inside:
            lines.append(line)
    if hosts:
        lines.append(HOSTS_BEGIN)
        lines += ["{}\t{}".format(hosts[name], name) for name in sorted(hosts) if is_plain(name, hosts[name])]
        lines.append(HOSTS_END)
    return "".join(line + "\n" for line in lines)


def is_plain(name: str, address: str) -> bool:
    """Return whether a name and an address are safe to write into a hosts file."""
    return bool(re.fullmatch(r"[A-Za-z0-9._-]+", name) and re.fullmatch(r"[0-9A-Fa-f.:]+", address))


def flux_toml(bootstrap: Dict[str, Any], certificate: str) -> str:
    """Return the configuration file of a node's broker. The broker gets everything else from its leader."""
    lines = ["[bootstrap]", "curve_cert = " + toml_value(certificate)]
    lines += ["{} = {}".format(key, toml_value(value)) for key, value in bootstrap.items()]
    # noverify: the node's host name differs from its slot's name, and the broker would drain itself.
    return "\n".join([*lines, "", "[resource]", "noverify = true", ""])


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line. JSON strings are valid TOML except for the character DEL."""
    if isinstance(value, dict):
        return "{ " + ", ".join("{} = {}".format(key, toml_value(item)) for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[ " + ", ".join(toml_value(item) for item in value) + " ]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def clean_environment() -> Dict[str, str]:
    """Return the environment without the client's own settings and without variables of another Flux instance."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FLUX_")}


# --- systemd ----------------------------------------------------------------------------------------------

UNIT = """\
[Unit]
Description=Keeps this node in its Flux instance
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={python} {program} {folder}
Restart=always
RestartSec=5
# Its broker is one of its processes and ends with it.
KillMode=mixed
Delegate=yes

[Install]
WantedBy=multi-user.target
"""


def quote_unit_word(text: str) -> str:
    """Quote a word for a command in a unit file. See systemd.service(5), "Command lines"."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(character, escaped)
    return '"{}"'.format(text)


def install_service(settings: ClientSettings, unit: Path, systemd: str = "/run/systemd/system") -> bool:
    """Install the client as a systemd unit and start it. Return False if that is not possible. See sd_booted(3)."""
    if not settings.systemd or not os.path.isdir(systemd) or shutil.which("systemctl") is None:
        return False
    program = settings.folder / "flux-node-join"
    source = Path(os.path.abspath(__file__))
    if source != program:
        write_private(program, source.read_text(encoding="utf-8"))
    words = {"python": sys.executable, "program": str(program), "folder": str(settings.folder)}
    text = UNIT.format(**{name: quote_unit_word(word) for name, word in words.items()})
    unit.write_text(text, encoding="utf-8")
    for command in (["daemon-reload"], ["enable", unit.name], ["restart", unit.name]):
        if subprocess.run(["systemctl", *command], check=False).returncode != 0:
            return False
    return True


# --- the process ------------------------------------------------------------------------------------------


def read_settings(arguments: List[str]) -> ClientSettings:
    """Read the settings from the folder named on the command line, or else from the environment."""
    if arguments:
        saved = json.loads((Path(arguments[0]) / "join.json").read_text(encoding="utf-8"))
        return ClientSettings({str(key): str(value) for key, value in saved.items()})
    prefix = "FLUX_NODE_JOIN_"
    values = {name[len(prefix) :]: value for name, value in os.environ.items() if name.startswith(prefix)}
    values.pop("MACHINE", None)
    return ClientSettings(values)


def save_settings(settings: ClientSettings) -> None:
    """Write the settings to the node's folder, for every later start."""
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    saved = dict(settings.values, DIR=str(settings.folder), HOSTS=str(settings.hosts_file))
    saved["MACHINE"] = json.dumps(machine_marks())
    write_private(settings.folder / "join.json", json.dumps(saved))


def run(client: JoinClient) -> int:
    """Step the client until the node ends or a signal arrives. Then stop the broker."""

    def stop(*_: object) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        while True:
            wait_s = client.step()
            if wait_s is None:
                return 0
            if wait_s > HANG_UP_AFTER_S:
                client.machine.hang_up()  # the service holds only so many connections
            time.sleep(wait_s)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not client.ended:
            client.leave()


def main(arguments: List[str]) -> int:
    """Read the settings, then run the client here or as a systemd unit. Return the exit status."""
    try:
        settings = read_settings(arguments)
    except (KeyError, ValueError, OSError) as error:
        sys.stderr.write("flux-node-join: FLUX_NODE_JOIN_* or FOLDER/join.json is needed: {!r}\n".format(error))
        return EXIT_SETTINGS
    machine = LocalMachine(settings)
    if not arguments:
        try:
            save_settings(settings)
        except OSError as error:
            # A node that cannot join still costs money, so it ends like a node whose ticket is refused.
            machine.log("{} cannot be used: {}; this node does not join".format(settings.folder, error.strerror))
            time.sleep(settings.silence_max_s)
            machine.power_off()
            return 1
        if install_service(settings, Path("/etc/systemd/system/flux-node-join.service")):
            return 0
    client = JoinClient(machine, settings.launch, settings.ticket, settings.silence_max_s, settings.batch)
    return run(client)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
