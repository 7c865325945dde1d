"""Flower's SuperLink with the gate in front of it, as one program."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import Mapping

from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    ListRunsResponse,
)

from deploy.control import REMOVED
from deploy.files import SuperLinkFile
from deploy.gate.connection import Inside
from deploy.gate.identity import Node, Registry
from deploy.gate.objects import Objects
from deploy.gate.rules import Allowance
from deploy.gate.server import Gate, tls_context
from deploy.gate.upstream import Upstream, UpstreamError
from deploy.operators import operators_authority
from fedrc_flwr.errors import ConfigError
from server_app.names import write_registry

START_SECONDS, STOP_SECONDS = 120.0, 20.0
#: How often Flower is asked whether it is well, who is registered, and which runs are over.
HEALTH_SECONDS, NODES_SECONDS, RUNS_SECONDS = 5.0, 60.0, 300.0
#: Refusals that are logged one by one in a minute; the others are counted.
TOLD_EACH_MINUTE = 20
PR_SET_PDEATHSIG = 1


def run(file: SuperLinkFile, command: list[str], environment: Mapping[str, str]) -> int:
    """Run Flower and the gate until one of them ends; returns Flower's exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * file.connections + 256
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"connections = {file.connections}: this machine allows {hard} open files"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    return asyncio.run(_run(file, command, environment))


async def _run(file: SuperLinkFile, command: list[str], environment: Mapping[str, str]) -> int:
    flower = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), preexec_fn=_end_with_parent
    )
    ended = asyncio.create_task(flower.wait())
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    asked = asyncio.create_task(stopped.wait())
    gate = asyncio.create_task(_gate(file))
    try:
        await asyncio.wait({ended, asked, gate}, return_when=asyncio.FIRST_COMPLETED)
        if gate.done():
            gate.result()  # raises what went wrong
    finally:
        gate.cancel()
        asked.cancel()
        if not ended.done():
            flower.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), STOP_SECONDS)
        if not ended.done():
            flower.kill()
        code = await ended
    return 0 if stopped.is_set() else code


async def _gate(file: SuperLinkFile) -> None:
    """Open the gate once Flower is up."""
    if file.tls is None or file.certificates is None:
        raise ConfigError("there is no gate with insecure: true")
    upstream = Upstream(file.control, ssl.create_default_context(cafile=str(file.inner_ca)))
    started = time.monotonic()
    while not await upstream.answers():
        if time.monotonic() - started > START_SECONDS:
            raise ConfigError(f"Flower has not answered on {file.control}")
        await asyncio.sleep(0.2)
    registry = Registry(
        lambda: registered(upstream),
        lambda nodes: write_registry(file.nodes, {n.id: n.name for n in nodes.values()}),
    )
    await registry.refresh()
    health = Health(upstream)
    authority = operators_authority(file.certificates)
    objects = Objects(file.objects)
    inside = Inside(
        upstream, registry, Allowance(file.largest_reply * 10**6),
        file.certificates if authority else None, health, Refusals(), objects,
    )  # fmt: skip
    gate = Gate(tls_context(file.tls, authority), inside, file.connections)
    gc.freeze()  # what is here now stays: the gate's collections need not look at it

    def opened(port: int) -> None:
        print(f"gate: open on {file.listen}, in front of Flower on {file.control}", flush=True)

    try:
        await asyncio.gather(
            health.watch(), _watch_nodes(registry), _tidy_up(objects, upstream),
            gate.serve(file.listen, opened),
        )  # fmt: skip
    finally:
        upstream.close()


async def registered(upstream: Upstream) -> dict[bytes, Node]:
    """The registered nodes by their keys, as Flower lists them."""
    request = ListNodesRequest().SerializeToString()
    status, body = await upstream.ask(b"POST", b"/v1/control/list-nodes", request)
    if status != 200:
        raise UpstreamError(f"Flower lists no nodes: status {status}")
    answer = ListNodesResponse.FromString(body)
    return {
        info.public_key: Node(info.node_id, info.name)
        for info in answer.nodes_info
        if info.status != REMOVED
    }


async def _watch_nodes(registry: Registry) -> None:
    """Keep the names up to date; a new node makes itself known by its first request."""
    while True:
        await asyncio.sleep(NODES_SECONDS)
        with contextlib.suppress(UpstreamError, OSError):  # OSError: a full disk
            await registry.refresh()


async def _tidy_up(objects: Objects, upstream: Upstream) -> None:
    """Delete what is left of runs whose ServerApp could not do it any more."""
    while True:
        for run in objects.runs():
            with contextlib.suppress(UpstreamError):
                if await is_over(upstream, run):
                    objects.forget(run)
        await asyncio.sleep(RUNS_SECONDS)


async def is_over(upstream: Upstream, run: int) -> bool:
    """Whether a run has ended, or Flower does not know it."""
    request = ListRunsRequest(run_id=run).SerializeToString()
    status, body = await upstream.ask(b"POST", b"/v1/control/list-runs", request)
    if status == 404:
        return True
    if status != 200:
        raise UpstreamError(f"Flower lists no runs: status {status}")
    answer = ListRunsResponse.FromString(body)
    return run not in answer.run_dict or answer.run_dict[run].status.status == "finished"


class Health:
    """Whether Flower answers. It is asked now and then, not by whoever asks the gate."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._up = True

    def __call__(self) -> bool:
        """How it was when it was last asked."""
        return self._up

    async def watch(self) -> None:
        """Ask for ever."""
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            self._up = await self._upstream.answers()


class Refusals:
    """Logs who was refused and why, without letting a stranger fill the disk."""

    def __init__(self) -> None:
        self._minute = time.monotonic()
        self._told = 0
        self._silent: Counter[str] = Counter()

    def __call__(self, address: str, who: str, reason: str) -> None:
        """A caller was refused."""
        if time.monotonic() - self._minute > 60:
            for where, times in self._silent.most_common(5):
                print(f"gate: refused {where} {times} more times", flush=True)
            self._minute, self._told = time.monotonic(), 0
            self._silent.clear()
        if self._told >= TOLD_EACH_MINUTE:
            if address in self._silent or len(self._silent) < 1000:
                self._silent[address] += 1
            return
        self._told += 1
        caller = f"{who!r} at {address}" if who else address
        print(f"gate: refused {caller}: {reason[:200]!r}", flush=True)


def _end_with_parent() -> None:
    """Flower does not outlive the gate, whatever ends it.

    It ends at once: what it still did would reach nobody, such as the delivery of a message, and
    its ports would be taken for the next start.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
