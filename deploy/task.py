"""One message to a node, in a process of its own: check the app and the run, then execute it.

It takes the place of Flower's ``flwr-clientapp``, which imports whatever the server sends.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from logging import ERROR, INFO
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.config import get_project_config
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore import log
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.object_ref import load_app
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.utils import get_flwr_home
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from deploy.bundle import PACKAGES, check_bundle, hash_of
from deploy.files import NodeFile, read_node_file
from deploy.policy import check_run
from fedrc_flwr.engine.admission import harmless, refusal
from fedrc_flwr.errors import PolicyError
from fedrc_flwr.records import ENROL, SCHEMA

#: Errors of the app that have been through ``harmless``, or say nothing about files and data. By
#: name, because an app that was unpacked has classes of its own.
TOLD = ("RunError", "WireError", "DivergedError")


def run_task(node: Path, address: str, token: str, parent: int) -> None:
    """Answer the message that a token stands for."""
    start_parent_process_monitor(parent)
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the node's own port, on loopback
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    context, failed = None, "the message could not be read"
    try:
        message, context, _, bundle = pull_task_input(client)
        reply, failed = answer(read_node_file(node), message, context, bundle)
        push_message(client, reply, context)
    finally:
        status = SubStatus.FAILED if failed else SubStatus.COMPLETED
        push_task_output(client, context, status, failed)
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def answer(file: NodeFile, message: Message, context: Context, bundle: Fab) -> tuple[Message, str]:
    """The reply to a message, and what failed; nothing of a refused run is imported."""
    try:
        same = check_bundle(bundle.content, file.policy.apps)
        check_run(file.policy, context.run_config, file.data is not None, file.count_noise)
    except PolicyError as error:
        log(ERROR, "%s: %s", file.name, error)
        return _refused(file.name, message, error), str(error)
    try:
        app = _installed_app() if same else _unpacked_app(bundle.content)
    except Exception as error:  # whatever an allowed app does when it is imported
        log(ERROR, "%s: the app cannot be loaded", file.name, exc_info=error)
        return _error(message, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, error), "not loaded"
    try:
        return app(message=message, context=context), ""
    except Exception as error:  # whatever the app raises
        log(ERROR, "%s: the app failed", file.name, exc_info=error)
        return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, error), "failed"


def _refused(name: str, message: Message, error: PolicyError) -> Message:
    """The answer that an enrolment understands, or an error in words."""
    if message.metadata.message_type != ENROL:
        return Message(
            Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, harmless(error)), reply_to=message
        )
    told = ConfigRecord({"schema": SCHEMA, **vars(refusal(error, name))})
    return Message(RecordDict({"refusal": told}), reply_to=message)


def _error(message: Message, code: int, error: Exception) -> Message:
    """An error without what it says about the node's files and data, which its log has."""
    said = str(error) if type(error).__name__ in TOLD else harmless(error)
    return Message(Error(code, said), reply_to=message)


def _installed_app() -> ClientApp:
    """The app of the release that is installed: its files are those of the bundle."""
    from client_app.app import app

    return app


def _unpacked_app(content: bytes) -> ClientApp:
    """An app that the node's policy lists, unpacked under the whole of its hash."""
    folder = install_from_fab(content, get_flwr_home() / hash_of(content), skip_prompt=True)
    reference = get_project_config(folder)["tool"]["flwr"]["app"]["components"]["clientapp"]
    log(INFO, "running %s of bundle %s", reference, hash_of(content))
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]  # the bundle has its own
    app = load_app(reference, LoadClientAppError, folder)
    if not isinstance(app, ClientApp):
        raise LoadClientAppError(f"{reference} is not a ClientApp")
    return app


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # also raised when the executor is gone
        run_task(Path(sys.argv[1]), sys.argv[2], sys.stdin.readline().strip(), int(sys.argv[3]))
