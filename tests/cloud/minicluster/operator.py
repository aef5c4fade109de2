"""A simulated Flux Operator with Kubernetes' Job controller and kubelet, over the objects of the API server.

It resizes as the operator does (flux-operator 0d75cef8). A MiniCluster that contradicts itself is ignored without
a word. A size below 1 is written back, and one above the maximum is written down. The indexes above a smaller size
go, whatever runs there: their processes ignore SIGTERM and get SIGKILL after the grace period. A pod that ends is
made again with the same index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.cloud.minicluster.api_server import JOBS, MINICLUSTERS, PODS, ApiServer, Refused

NAMESPACE = "flux"


class Kubelet(Protocol):
    """Runs the processes of pods."""

    def start(self, index: int) -> None: ...

    def alive(self, index: int) -> bool: ...

    def kill(self, index: int) -> None: ...


class Memory:
    """Pods without processes."""

    def __init__(self) -> None:
        self.running: set[int] = set()

    def start(self, index: int) -> None:
        self.running.add(index)

    def alive(self, index: int) -> bool:
        return index in self.running

    def kill(self, index: int) -> None:
        self.running.discard(index)


class Operator:
    """One MiniCluster's operator. ``silent``: it does nothing. ``room``: how many pods fit on the machines."""

    def __init__(self, api: ApiServer, name: str, kubelet: Kubelet, *, grace_s: float = 0.0) -> None:
        self.api, self.name, self.kubelet = api, name, kubelet
        self.grace_s = grace_s
        self.silent = False
        self.room = 10_000
        self.paused_pods: set[int] = set()  # that stay pending
        self._made = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float = 0.05) -> None:
        """Reconcile in a thread of its own."""

        def run() -> None:
            while not self._stopped.wait(every_s):
                self.step()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def step(self) -> None:
        """Reconcile once, then let the Job controller and the kubelet work once."""
        if not self.silent:
            self.reconcile()
        self._control_job()
        self._run_pods()

    def shown(self) -> dict[str, Any]:
        return self.api.store.get(MINICLUSTERS, NAMESPACE, self.name)

    def pods(self) -> dict[int, dict[str, Any]]:
        found = self.api.store.list(PODS, NAMESPACE)
        ours = (pod for pod in found if pod["metadata"]["labels"]["job-name"] == self.name)
        return {int(pod["metadata"]["labels"]["job-index"]): pod for pod in ours}

    # --- the operator ---

    def reconcile(self) -> None:
        try:
            found = self.shown()
        except Refused:
            return
        spec, status = found["spec"], found.get("status") or {}
        size, least, most = spec.get("size", 1), spec.get("minSize", 0), spec.get("maxSize", 0)
        if size == 0 and not status:
            return
        if (most and most < size) or least > size or (most and least > most):
            return  # no event, no condition
        if "maximumSize" not in status:
            maximum = max(size, most)
            self._change(lambda it: it.update(status=self._status(size, maximum)))
            self._set_job(size)
            return
        job = self.api.store.get(JOBS, NAMESPACE, self.name)
        parallelism = job["spec"]["parallelism"]
        if parallelism == size:
            return
        if size < 1:
            self._change(lambda it: it["spec"].update(size=parallelism))
        elif size > status["maximumSize"]:
            maximum = status["maximumSize"]
            self._change(lambda it: (it["spec"].update(size=maximum), it["status"].update(size=maximum)))
        else:
            self._set_job(size)
            self._change(lambda it: it["status"].update(size=size))

    def _status(self, size: int, maximum: int) -> dict[str, Any]:
        selector = f"hpa-selector={self.name}"
        return {"size": size, "maximumSize": maximum, "selector": selector, "conditions": []}

    def _change(self, edit: Callable[[dict[str, Any]], Any]) -> None:
        self.api.store.change(MINICLUSTERS, NAMESPACE, self.name, edit)

    def _set_job(self, size: int) -> None:
        job = {"metadata": {"name": self.name}, "spec": {"parallelism": size, "completions": size}}
        self.api.store.put(JOBS, NAMESPACE, job)

    # --- the Job controller and the kubelet ---

    def _control_job(self) -> None:
        jobs = {job["metadata"]["name"]: job for job in self.api.store.list(JOBS, NAMESPACE)}
        if self.name not in jobs:
            return
        size = jobs[self.name]["spec"]["parallelism"]
        pods = self.pods()
        for index in range(size):
            if index not in pods:
                self._make_pod(index)
        for index, pod in pods.items():
            if index >= size and "deletionTimestamp" not in pod["metadata"]:
                self._mark_leaving(pod)

    def _make_pod(self, index: int) -> None:
        self._made += 1
        labels = {"job-name": self.name, "job-index": str(index), "hpa-selector": self.name}
        name = f"{self.name}-{index}-{self._made:05x}"
        pod = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"phase": "Pending"}}
        self.api.store.put(PODS, NAMESPACE, pod)

    def _mark_leaving(self, pod: Mapping[str, Any]) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ends_s = time.monotonic() + self.grace_s

        def mark(it: dict[str, Any]) -> None:
            it["metadata"]["deletionTimestamp"] = at
            it["metadata"]["annotations"] = {"test/killed-at": str(ends_s)}

        self.api.store.change(PODS, NAMESPACE, pod["metadata"]["name"], mark)

    def _run_pods(self) -> None:
        pods = self.pods()
        running = sum(pod["status"]["phase"] == "Running" for pod in pods.values())
        for index, pod in sorted(pods.items()):
            name, metadata = pod["metadata"]["name"], pod["metadata"]
            if "deletionTimestamp" in metadata:
                if time.monotonic() >= float(metadata["annotations"]["test/killed-at"]):
                    self.kubelet.kill(index)
                    self.api.store.delete(PODS, NAMESPACE, name)
            elif pod["status"]["phase"] == "Running":
                if not self.kubelet.alive(index):
                    self.api.store.delete(PODS, NAMESPACE, name)  # and the Job controller makes another
            elif running < self.room and index not in self.paused_pods:
                running += 1
                self.kubelet.start(index)
                self._set_status(name, {"phase": "Running", "podIP": f"10.1.{index // 250}.{index % 250 + 1}"})
            else:
                reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                conditions = [{**reason, "message": "0/3 nodes are available: 3 Insufficient cpu."}]
                self._set_status(name, {"phase": "Pending", "conditions": conditions})

    def _set_status(self, name: str, status: dict[str, Any]) -> None:
        self.api.store.change(PODS, NAMESPACE, name, lambda it: it.update(status=status))


def a_minicluster(name: str, size: int = 1, **spec: Any) -> dict[str, Any]:
    """A MiniCluster as somebody applies it."""
    container = {"image": "example.org/flux:0.88", "runFlux": True}
    return {
        "metadata": {"name": name},
        "spec": {"size": size, "interactive": True, "containers": [container], **spec},
    }
