#!/usr/bin/env python3
"""flux-node-join: brings this machine into a Flux instance as one of its slots, and keeps it there.

It shows its ticket to the join service, is given what a broker needs, starts the broker, and starts it again
whenever that ends, as long as the service says that the slot is still this node's. When no manager has been heard
of for too long, and no job runs here, it ends the machine. The protocol is in doc/joining.md.

One file, nothing but Python's standard library, Python 3.8 or later. Settings come from the environment
(FLUX_NODE_JOIN_*) at the first start, and from join.json in the node's folder later.
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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Tuple

CALL_TIMEOUT_S = 10.0
ANSWER_MAX_BYTES = 4 * 1024 * 1024
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
STEADY_S = 60.0  # a broker that ran so long was well: the next start is soon
BROKER_STOP_S = 5.0  # what a broker gets to leave in good order; one whose leader died does not heed SIGTERM
DRAIN_TIMEOUT_S = 5.0
STEP_MAX_S = 1.0
SHELL_EMPTY_MAX_S = 300.0  # a job's shell without a task for so long has none any more, and waits for a dead rank 0
LOG_TAIL_MAX_BYTES = 1500
REPORTS_MAX = 20
NOTICE_EVERY_S = 5.0  # how often the provider is asked whether it takes this node back; EC2 gives two minutes
NOTICE_TIMEOUT_S = 1.0
METADATA_SERVICE = "http://169.254.169.254"
HOSTS_BEGIN = "# flux-node-join: begin"
HOSTS_END = "# flux-node-join: end"

EXIT_SETTINGS = 78

# What a refusal means that no further try will change: the ticket is not, or no longer, worth anything here.
FINAL_REFUSALS = ("wrong", "expired", "used", "malformed", "too_large")


class JoinRefused(Exception):
    """The service answered, and did not grant it. ``code`` is its word."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class ServiceUnreachable(Exception):
    """No address of the service gave an answer."""


class CannotJoin(Exception):
    """This machine cannot join as it is; the text says why, for whoever made its image."""


class ClientSettings:
    """What the user-data said."""

    def __init__(self, values: Dict[str, str]) -> None:
        self.values = values
        self.launch = values["LAUNCH"]
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
        self.notice = values.get("NOTICE") or ""  # whose metadata tell that this node is taken back; "" is nobody's
        self.metadata = values.get("METADATA") or METADATA_SERVICE
        self.machine = parse_marks(values.get("MACHINE") or "")  # on which the settings were kept; {} is not known
        self.shell_empty_max_s = float(values.get("SHELL_EMPTY_MAX_S") or SHELL_EMPTY_MAX_S)


# --- what is decided --------------------------------------------------------------------------------------


class JoinClient:
    """A node's way into the instance and through its life there, a step at a time.

    ``machine`` is all that it touches. A step never waits: it gives the seconds until the next is due, or None when
    the node has ended.
    """

    def __init__(self, machine: Any, launch: str, ticket: str, silence_max_s: float) -> None:
        self.machine = machine
        self.launch = launch
        self.ticket = ticket
        self.silence_max_s = silence_max_s
        self.instance = machine.instance()  # this process: the service lets one at a time start a broker
        kept = machine.load()
        self.nonce = str(kept.get("nonce") or "")
        self.lease_key = str(kept.get("lease_key") or "")
        now_s = machine.now_s()
        # Whoever made this node was alive just now.
        self.manager_heard_s = now_s
        self.lease_missing_s: Optional[float] = None  # since when the service has not known our launch
        self.orphan_grace_s = silence_max_s
        self.renew_s = 10.0
        self.call_due_s = now_s
        self.call_pause_s = RETRY_FIRST_S
        self.start_due_s = now_s
        self.start_pause_s = RETRY_FIRST_S
        self.started_s: Optional[float] = None  # when the broker that runs was started
        self.broker_material: Dict[
            str, Any
        ] = {}  # what a broker may be started with; {} until it was asked for anew
        self.running_digest = ""  # the digest of what the running broker was started with
        self.hosts_digest = ""
        self.notice_due_s = now_s
        self.reclaimed = ""  # the provider is about to take this node back; its words
        self.why_cannot_join = ""  # why this machine will never join
        # First of all what this machine really has: the manager compares it with what the slot declares.
        measured = machine.measured()
        self.reports: List[Tuple[str, str]] = [("measured", json.dumps(measured))] if measured else []
        self.ended = False
        if machine.is_a_copy():
            self._give_up("this disk is a copy of another machine's, whose place this one does not take")

    def step(self) -> Optional[float]:
        """Do what is due now."""
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
        except ServiceUnreachable as error:
            self.machine.log("the join service cannot be reached: {}".format(error))
            self._call_later(now_s)
        except JoinRefused as refusal:
            self._handle_refusal(refusal.code, now_s)
        except (KeyError, TypeError, ValueError, OSError) as error:
            # An answer of another protocol, or a disk that is full: neither is worth a job that runs here.
            self.machine.log("this call came to nothing: {!r}".format(error))
            self._call_later(now_s)
        else:
            self.lease_missing_s = None
            self.call_pause_s = RETRY_FIRST_S
            now_s = self.machine.now_s()
            # Not all at once: nodes that were made together would ask together for ever.
            self.call_due_s = now_s + self.renew_s * self.machine.uniform(0.8, 1.2)
            if self._waits_to_start() and now_s < self.start_due_s:
                self.call_due_s = min(self.call_due_s, self.start_due_s)

    def _exchange(self) -> None:
        if not self.lease_key:
            self._redeem()
        elif self._waits_to_start() and self.machine.now_s() >= self.start_due_s:
            # Just before each start: whose the slot is may have changed, and so may the certificate.
            self._accept_material(self._ask("fetch", {"key": self.lease_key}))
        else:
            self._renew()
        self._send_reports()

    def _redeem(self) -> None:
        if not self.nonce:
            self.nonce = self.machine.nonce()
            self._save()  # before it is shown: whoever asks again after a crash must be known as the same
        answer = self._ask("redeem", {"ticket": self.ticket, "nonce": self.nonce})
        self.lease_key = str(answer["lease_key"])
        self._save()
        self._accept_material(answer)

    def _renew(self) -> None:
        answer = self._ask("renew", {"key": self.lease_key, "hosts_digest": self.hosts_digest})
        self._accept_lease(answer)
        old = self.running_digest and answer["material"] != self.running_digest
        if old and not answer["online"] and not self.machine.job_runs():
            # It began with what is no longer true (the certificate was changed), and waits for ever to be let in.
            self._report("ended", "the broker was stopped: what it was started with has changed")
            self._stop_broker()

    def _accept_material(self, answer: Dict[str, Any]) -> None:
        self._accept_lease(answer)
        try:
            self.machine.check(answer)
        except CannotJoin as error:
            self.why_cannot_join = str(error)
            self._report("failed", self.why_cannot_join)
            return
        self.broker_material = answer if answer["may_start"] else {}

    def _accept_lease(self, answer: Dict[str, Any]) -> None:
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
            # The lease has ended, or the record is being made anew. No broker is started meanwhile.
            self.broker_material = {}
            self.machine.log("the join service refuses: not_current; the slot is no longer this node's")
            if self.lease_missing_s is None:
                self.lease_missing_s = now_s
        elif code in FINAL_REFUSALS and not self.lease_key:
            self._give_up("the join service refuses the ticket: " + code)
            return
        else:
            self.machine.log("the join service refuses: " + code)
        self._call_later(now_s)

    def _give_up(self, why: str) -> None:
        """Ask for nothing more. This node ends once it has heard of no manager for long enough."""
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
        """In their order, each once it was taken. What the service does not want is not worth another try."""
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
        self.machine.save({"nonce": self.nonce, "lease_key": self.lease_key})

    # --- the broker ---

    def _waits_to_start(self) -> bool:
        return self.started_s is None and not self.why_cannot_join

    def _may_start(self, now_s: float) -> bool:
        return bool(self.broker_material) and self._waits_to_start() and now_s >= self.start_due_s

    def _start(self, now_s: float) -> None:
        given, self.broker_material = self.broker_material, {}
        try:
            self.machine.start_broker(given)
        except CannotJoin as error:
            self.why_cannot_join = str(error)
            self._report("failed", self.why_cannot_join)
            return
        except (KeyError, OSError) as error:
            self._note_broker_end(now_s)
            self._report("ended", "the broker could not be started: {!r}".format(error))
            return
        self.started_s = now_s
        self.running_digest = str(given["material"])
        self._report("started", "as {}".format(given["slot"]))

    def _check_broker(self, now_s: float) -> None:
        """A broker ends when rank 0 goes away: it is started again for ever, each time a little later."""
        if self.started_s is None:
            return
        status = self.machine.broker_status()
        if status is None:
            return
        self._note_broker_end(now_s)
        self._report("ended", "the broker ended with {}\n{}".format(status, self.machine.broker_tail()))

    def _note_broker_end(self, now_s: float) -> None:
        steady = self.started_s is not None and now_s - self.started_s >= STEADY_S
        self.start_pause_s = RETRY_FIRST_S if steady else self.start_pause_s
        self.start_due_s = now_s + self.start_pause_s * self.machine.uniform(0.5, 1.0)
        self.start_pause_s = min(RETRY_MAX_S, 2 * self.start_pause_s)
        self.started_s = None
        self.running_digest = ""
        self.broker_material = {}
        self.call_due_s = min(self.call_due_s, now_s)

    def _stop_broker(self) -> None:
        self.machine.stop_broker()
        self._note_broker_end(self.machine.now_s())

    def _check_reclaim_notice(self, now_s: float) -> None:
        """A spot node is told a little before it is taken back: the manager must know while there is time."""
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
        # Rank 0 may live and give us a job at this very moment: take none, then look again.
        self.machine.drain("flux-node-manager:" + self.launch)
        return not self.machine.job_runs()

    def _end(self) -> None:
        self.machine.log("no manager has been heard of, or the slot is another's, and no job runs: this node ends")
        self.ended = True
        self.leave()
        self.machine.power_off()

    def leave(self) -> None:
        """Stop the broker and take our lines out of the hosts file."""
        self.machine.stop_broker()
        self.started_s = None
        self.machine.write_hosts({})


# --- what it touches --------------------------------------------------------------------------------------


class LocalMachine:
    """This machine: its clock, its files, its processes, and the way to the join service."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.broker: Optional[subprocess.Popen[bytes]] = None
        self.rundir = ""
        self.shells_empty_s: Optional[float] = None  # since when no job has had a process but its shell
        self.first_address = 0
        self.metadata_token = ""

    def now_s(self) -> float:
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def nonce(self) -> str:
        return secrets.token_hex(32)

    def instance(self) -> str:
        return secrets.token_hex(16)

    def is_a_copy(self) -> bool:
        """Whether what lies in our folder was written on another machine."""
        return not is_same_machine(self.settings.machine, machine_marks())

    def log(self, text: str) -> None:
        sys.stderr.write("flux-node-join: {}\n".format(text))
        sys.stderr.flush()

    def measured(self) -> Dict[str, int]:
        """What this machine has of all that a slot declares; {} where it does not say."""
        try:
            processors = os.sched_getaffinity(0)
            return {
                "cores": count_cores(processors),
                "threads": len(processors),
                "gpus": count_gpus(),
                "memory_bytes": memory_bytes(),
            }
        except (OSError, ValueError) as error:
            self.log("what this machine has cannot be read: {!r}".format(error))
            return {}

    # --- files ---

    def load(self) -> Dict[str, Any]:
        try:
            kept = json.loads((self.settings.folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        # Of another launch: an image made of a node that had joined. Its secrets are not ours, nor are those of
        # another machine that runs the same launch.
        if not isinstance(kept, dict) or kept.get("launch") != self.settings.launch:
            return {}
        return kept if is_same_machine(parse_marks(kept.get("machine")), machine_marks()) else {}

    def save(self, state: Dict[str, Any]) -> None:
        kept = dict(state, launch=self.settings.launch, machine=machine_marks())
        write_private(self.settings.folder / "state.json", json.dumps(kept))

    def write_hosts(self, hosts: Dict[str, str]) -> None:
        """Replace our marked lines in the hosts file, and nothing else in it. Without hosts they go."""
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
        """Try each address, the one that answered last first."""
        faults = []
        count = len(self.settings.addresses)
        for index in range(count):
            chosen = (self.first_address + index) % count
            address = self.settings.addresses[chosen]
            try:
                answer = post_json(address, self.settings.fingerprint, "/v1/" + what, body)
            except (OSError, ssl.SSLError, http.client.HTTPException, ValueError) as error:
                faults.append("{}: {}".format(address, error))
                continue
            self.first_address = chosen
            return answer
        raise ServiceUnreachable("; ".join(faults))

    def reclaim_notice(self) -> str:
        """What the provider says of taking this node back; "" if it does not, or cannot be asked."""
        ask = {"ec2": self.ec2_notice, "gce": self.gce_notice, "azure": self.azure_notice}.get(self.settings.notice)
        try:
            return ask() if ask is not None else ""
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
            return ""

    def ec2_notice(self) -> str:
        """By IMDSv2. There is no such document (404) until the node is to be taken back."""
        if not self.metadata_token:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            self.metadata_token = self.metadata("PUT", "/latest/api/token", life)[1]
        token = {"X-aws-ec2-metadata-token": self.metadata_token}
        status, text = self.metadata("GET", "/latest/meta-data/spot/instance-action", token)
        if status == 401:
            self.metadata_token = ""  # it has expired
        if status != 200:
            return ""
        action = json.loads(text)
        return "{} at {}".format(action["action"], action["time"])

    def gce_notice(self) -> str:
        flavor = {"Metadata-Flavor": "Google"}
        status, text = self.metadata("GET", "/computeMetadata/v1/instance/preempted", flavor)
        return "preempted" if status == 200 and text.strip() == "TRUE" else ""

    def azure_notice(self) -> str:
        """Scheduled events are those of all machines of a set: what counts is that ours is named."""
        asked = {"Metadata": "true"}
        status, text = self.metadata("GET", "/metadata/scheduledevents?api-version=2020-07-01", asked)
        if status != 200:
            return ""
        events = [it for it in json.loads(text)["Events"] if it["EventType"] in ("Preempt", "Terminate")]
        if not events:
            return ""
        path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        name = self.metadata("GET", path, asked)[1].strip()
        mine = [it for it in events if name in it["Resources"]]
        return "{} not before {}".format(mine[0]["EventType"], mine[0].get("NotBefore") or "now") if mine else ""

    def metadata(self, method: str, path: str, headers: Dict[str, str]) -> Tuple[int, str]:
        """Ask the provider's metadata service, past every proxy."""
        host = self.settings.metadata.split("//", 1)[-1]
        service = http.client.HTTPConnection(host, timeout=NOTICE_TIMEOUT_S)
        try:
            service.request(method, path, headers=headers)
            answer = service.getresponse()
            return answer.status, answer.read(ANSWER_MAX_BYTES).decode("utf-8")
        finally:
            service.close()

    # --- the broker ---

    def check(self, given: Dict[str, Any]) -> None:
        """Whether a broker of this machine can be let in."""
        installed = self.flux_version()
        if installed != given["flux_version"]:
            raise CannotJoin(
                "this node's image has flux-core {}, rank 0 runs {}: all brokers must be of exactly one version; "
                "make the image with flux-core {}".format(installed, given["flux_version"], given["flux_version"])
            )
        uid, name = self.broker_user()
        if uid != given["owner_uid"]:
            raise CannotJoin(
                "rank 0 belongs to uid {}, this node would run its broker as {} (uid {}): set [Join] node_user to "
                "the owner of the instance, who must have that uid here too".format(given["owner_uid"], name, uid)
            )

    def flux_version(self) -> str:
        try:
            said = subprocess.run(
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
        found = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\S*", said)
        return found.group(0) if found else "of no known version"

    def broker_user(self) -> Tuple[int, str]:
        if not self.settings.user:
            return os.getuid(), "the user of its user-data"
        try:
            return pwd.getpwnam(self.settings.user).pw_uid, self.settings.user
        except KeyError as error:
            raise CannotJoin("this node has no user {}: [Join] node_user".format(self.settings.user)) from error

    def start_broker(self, given: Dict[str, Any]) -> None:
        uid, _ = self.broker_user()
        self.clear_rundir()
        self.rundir = tempfile.mkdtemp(prefix="flux-slot.")
        conf = self.settings.folder / "conf.d"
        certificate = self.settings.folder / "curve.cert"
        if uid == os.getuid():
            conf.mkdir(mode=0o700, exist_ok=True)
        else:
            # Jobs may run as the broker's user: the files are theirs to read, the folders they are in are root's.
            own_folder(os.path.realpath(str(self.settings.folder)), 0o711)
            own_folder(str(conf), 0o755)
            os.chown(self.rundir, uid, -1)
        write_private(certificate, str(given["curve_cert"]), uid)
        write_private(conf / "flux.toml", flux_toml(given["bootstrap"], str(certificate)), uid)
        filled = {"flux": self.settings.flux, "conf": str(conf), "rundir": self.rundir}
        command = [
            re.sub(r"\{(\w+)\}", lambda found: filled.get(found.group(1), found.group(0)), part)
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

    def broker_environment(self, uid: int) -> Dict[str, str]:
        environment = clean_environment()
        if uid != os.getuid():
            entry = pwd.getpwnam(self.settings.user)
            environment.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
        return environment

    def become_user(self) -> None:
        entry = pwd.getpwnam(self.settings.user)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)

    def broker_status(self) -> Optional[str]:
        """None while it runs."""
        if self.broker is None:
            return "nothing"
        status = self.broker.poll()
        if status is None:
            return None
        self.broker = None
        self.clear_rundir()
        return "status {}".format(status) if status >= 0 else "signal {}".format(-status)

    def broker_tail(self) -> str:
        """The last lines that the broker wrote."""
        try:
            with open(str(self.log_file()), "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_MAX_BYTES))
                return log.read(LOG_TAIL_MAX_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""

    def log_file(self) -> Path:
        return self.settings.folder / "broker.log"

    def stop_broker(self) -> None:
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
        if self.rundir:
            shutil.rmtree(self.rundir, ignore_errors=True)
            self.rundir = ""

    def drain(self, reason: str) -> None:
        """Have the scheduler give us no more jobs. Where rank 0 is dead nobody answers, and nobody gives any."""
        if self.broker is None:
            return
        environment = dict(clean_environment(), FLUX_URI="local://{}/local".format(self.rundir))
        uid, _ = self.broker_user()
        try:
            rank = self.flux_says(["getattr", "rank"], environment, uid)
            self.flux_says(["resource", "drain", rank, reason], environment, uid)
        except (OSError, subprocess.SubprocessError) as error:
            self.log("not drained: {}".format(type(error).__name__))

    def flux_says(self, arguments: List[str], environment: Dict[str, str], uid: int) -> str:
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
        """Whether a job has a process here, by what the kernel says: with rank 0 dead Flux cannot.

        A shell that has no task may be about to start one, or wait for ever to tell rank 0 that they have ended.
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
        environment = dict(clean_environment(), FLUX_NODE_JOIN_PARENT=str(os.getppid()))
        subprocess.run(["/bin/sh", "-c", self.settings.poweroff], env=environment, check=False)


# --- the way to the service -------------------------------------------------------------------------------


class PinnedConnection(http.client.HTTPSConnection):
    """TLS to a certificate that is known by its fingerprint. Nothing is sent to any other."""

    def __init__(self, address: str, fingerprint: str) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # by the fingerprint, below
        super().__init__(host.strip("[]"), int(port), timeout=CALL_TIMEOUT_S, context=context)
        self.fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        certificate = self.sock.getpeercert(binary_form=True)
        if not certificate or hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            self.close()
            raise ConnectionError("it has another certificate than this node was told of")


def post_json(address: str, fingerprint: str, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
    """One request. Raises Refused for an answer that grants nothing, OSError or ValueError for none."""
    connection = PinnedConnection(address, fingerprint)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read(ANSWER_MAX_BYTES + 1)
    finally:
        connection.close()
    answer = json.loads(raw.decode())
    if len(raw) > ANSWER_MAX_BYTES or not isinstance(answer, dict):
        raise ValueError("it answers what is no answer")
    if response.status != 200:
        raise JoinRefused(str(answer.get("error", response.status)))
    return answer


# --- what the machine has ---------------------------------------------------------------------------------

# PCI: 3D and display controllers and accelerators are GPUs, whoever made them; what is called a VGA controller is
# one where NVIDIA or AMD made it, and else shows a console.
GPU_CLASSES = ("0x0302", "0x0380", "0x1200")
VGA_CLASS = "0x0300"
GPU_VENDORS = ("0x10de", "0x1002")


def count_cores(processors: Iterable[int]) -> int:
    """How many cores these hardware threads are of; as many as they are where the kernel does not say."""
    cores = set()
    for processor in processors:
        topology = Path("/sys/devices/system/cpu/cpu{}/topology".format(processor))
        try:
            place = tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id"))
        except OSError:
            place = (str(processor),)
        cores.add(place)
    return len(cores)


def count_gpus(devices: Path = Path("/sys/bus/pci/devices"), nodes: Path = Path("/dev")) -> int:
    """On the PCI bus, or by their device nodes, which is all that a container may see."""
    on_the_bus = 0
    for device in devices.iterdir() if devices.is_dir() else ():
        try:
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
        except OSError:
            continue
        on_the_bus += kind[:6] in GPU_CLASSES or (kind[:6] == VGA_CLASS and vendor in GPU_VENDORS)
    by_node = sum(1 for name in os.listdir(str(nodes)) if re.match(r"^nvidia[0-9]+$", name))
    return max(on_the_bus, by_node)


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    found = re.search(r"^MemTotal:\s+([0-9]+) kB$", meminfo.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("no MemTotal in {}".format(meminfo))
    return int(found.group(1)) * 1024


# --- which machine it is ---------------------------------------------------------------------------------

# What a copy of a disk does not bring along, the surest first: the hypervisor's name for the machine, which root
# reads; the provider's, which cloud-init writes before the network is up; the system's, which many copies share.
MARKS = (
    ("hypervisor", "/sys/class/dmi/id/product_uuid"),
    ("provider", "/var/lib/cloud/data/instance-id"),
    ("system", "/etc/machine-id"),
)


def machine_marks(root: Path = Path("/")) -> Dict[str, str]:
    """What tells this machine from others; less of it where less can be read."""
    found = {name: read_mark(root / path[1:]) for name, path in MARKS}
    return {name: text for name, text in found.items() if text}


def read_mark(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def is_same_machine(one: Dict[str, str], other: Dict[str, str]) -> bool:
    """By the surest mark that both have; the same where there is none to tell by."""
    for name, _ in MARKS:
        if name in one and name in other:
            return one[name] == other[name]
    return True


def parse_marks(kept: Any) -> Dict[str, str]:
    """Marks as they were kept, in JSON or read from it; {} for anything else."""
    if isinstance(kept, str):
        try:
            kept = json.loads(kept)
        except ValueError:
            return {}
    return {str(name): str(text) for name, text in kept.items()} if isinstance(kept, dict) else {}


# --- what the kernel says ---------------------------------------------------------------------------------


def job_processes(broker: int, rundir: str) -> Tuple[List[int], List[int]]:
    """What of jobs runs under a broker: their processes, and their shells that have no child.

    They are the broker's children, but for housekeeping and modules; and tasks that have left their shell behind,
    known by what that put into their environment.
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


def is_shell(command: bytes) -> bool:
    return os.path.basename(command.split(b"\0")[0]) == b"flux-shell"


def is_broker_helper(command: bytes) -> bool:
    """Whether a broker's child runs for the broker itself: housekeeping, a module, its start and its end."""
    words = [os.path.basename(word) for word in command.split(b"\0")[:4]]
    return any(
        b"housekeeping" in word or word.startswith((b"flux-module-", b"modprobe", b"rc1", b"rc3")) for word in words
    )


def is_task(environ: bytes, rundir: str) -> bool:
    variables = environ.split(b"\0")
    return b"FLUX_URI=local://" + os.fsencode(rundir) + b"/local" in variables and any(
        variable.startswith(b"FLUX_TASK_RANK=") for variable in variables
    )


def read_proc(pid: int, name: str) -> bytes:
    try:
        with open("/proc/{}/{}".format(pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


# --- files ------------------------------------------------------------------------------------------------


def write_private(path: Path, text: str, uid: int = -1) -> None:
    """Write a file for its owner only, so that it is read whole, as it was or as it is."""
    os.replace(write_draft(path, text.encode("utf-8"), 0o600, uid), str(path))


def replace_or_overwrite(path: Path, text: str) -> None:
    """Replace a file that others read, with its mode; where it is a mount of its own, write into it."""
    data = text.encode("utf-8", errors="surrogateescape")
    draft = write_draft(path, data, os.stat(str(path)).st_mode & 0o777 if path.exists() else 0o644)
    try:
        os.replace(draft, str(path))
    except OSError:  # containers mount their hosts file, which can be written and not be replaced
        os.unlink(draft)
        with open(str(path), "r+b") as file:
            file.write(data)
            file.truncate()


def write_draft(path: Path, data: bytes, mode: int, uid: int = -1) -> str:
    """What is to take a file's place, on disk beside it. Its owner is given by its descriptor: a name may lie."""
    draft = "{}.flux-node-join".format(path)
    with os.fdopen(new_file(draft, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fchown(file.fileno(), uid, -1)
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    return draft


def new_file(path: str, mode: int) -> int:
    """A descriptor of a file that is surely new: a link in its place is removed, and not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def own_folder(path: str, mode: int) -> None:
    """Make a folder of ours, or take one that is another's: nobody else is to write where we do."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(folder, os.getuid(), -1)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def with_hosts(before: str, hosts: Dict[str, str]) -> str:
    """A hosts file with our block replaced, at its end; without one where there are no hosts."""
    kept: List[str] = []
    inside = False
    for line in before.splitlines():
        if line == HOSTS_BEGIN:
            inside = True
        elif line == HOSTS_END:
            inside = False
        elif not inside:
            kept.append(line)
    if hosts:
        kept.append(HOSTS_BEGIN)
        kept += ["{}\t{}".format(hosts[name], name) for name in sorted(hosts) if is_plain(name, hosts[name])]
        kept.append(HOSTS_END)
    return "".join(line + "\n" for line in kept)


def is_plain(name: str, address: str) -> bool:
    return bool(re.match(r"^[A-Za-z0-9._-]+$", name) and re.match(r"^[0-9A-Fa-f.:]+$", address))


def flux_toml(bootstrap: Dict[str, Any], certificate: str) -> str:
    """A follower's configuration. The rest it is given by its leader."""
    lines = ["[bootstrap]", "curve_cert = " + toml_value(certificate)]
    lines += ["{} = {}".format(key, toml_value(value)) for key, value in bootstrap.items()]
    # A node's own name is not that of its slot.
    return "\n".join([*lines, "", "[resource]", "noverify = true", ""])


def toml_value(value: Any) -> str:
    """A value in one line. JSON's strings are TOML's but for one character."""
    if isinstance(value, dict):
        return "{ " + ", ".join("{} = {}".format(key, toml_value(item)) for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[ " + ", ".join(toml_value(item) for item in value) + " ]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def clean_environment() -> Dict[str, str]:
    """Ours, without our secrets and without another instance's marks."""
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
    """A word of a command in a unit, whatever it holds: systemd.service(5), "Command lines"."""
    for mark, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(mark, instead)
    return '"{}"'.format(text)


def install_service(settings: ClientSettings, unit: Path, systemd: str = "/run/systemd/system") -> bool:
    """Let systemd run us, from now on and after a reboot; False where that cannot be. See sd_booted(3)."""
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
    """From the folder named on the command line, else from the environment."""
    if arguments:
        kept = json.loads((Path(arguments[0]) / "join.json").read_text(encoding="utf-8"))
        return ClientSettings({str(key): str(value) for key, value in kept.items()})
    mark = "FLUX_NODE_JOIN_"
    values = {name[len(mark) :]: value for name, value in os.environ.items() if name.startswith(mark)}
    values.pop("MACHINE", None)
    return ClientSettings(values)


def save_settings(settings: ClientSettings) -> None:
    """Write them to the node's folder, for every later start."""
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = dict(settings.values, DIR=str(settings.folder), HOSTS=str(settings.hosts_file))
    kept["MACHINE"] = json.dumps(machine_marks())
    write_private(settings.folder / "join.json", json.dumps(kept))


def run(joining: JoinClient) -> int:
    def stop(*_: object) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        while True:
            wait_s = joining.step()
            if wait_s is None:
                return 0
            time.sleep(wait_s)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not joining.ended:
            joining.leave()


def main(arguments: List[str]) -> int:
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
            # A node that cannot join costs all the same: it ends as one that nobody lets in.
            machine.log("{} cannot be used: {}; this node does not join".format(settings.folder, error.strerror))
            time.sleep(settings.silence_max_s)
            machine.power_off()
            return 1
        if install_service(settings, Path("/etc/systemd/system/flux-node-join.service")):
            return 0
    return run(JoinClient(machine, settings.launch, settings.ticket, settings.silence_max_s))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
