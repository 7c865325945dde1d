"""The commands ``fedrc assign``, ``predict``, ``export`` and ``serve``.

Thin on ``fedrc_flwr.inference``, and outside of it: importing that package takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrc_flwr.errors import MISUSED, ConfigError, FedRCError

if TYPE_CHECKING:
    from fedrc_flwr.inference.assignment import Assignment
    from fedrc_flwr.inference.trained import Trained
    from fedrc_flwr.inference.weights import Weights

Run = Annotated[Path, typer.Argument(help="A run's directory, or one checkpoint of it.")]
Data = Annotated[
    Path | None, typer.Option(help="Your samples: a table, .npz file or folder of images.")
]
Client = Annotated[str | None, typer.Option(help="Or a client or observer of the run's scenario.")]
WeightsFile = Annotated[
    Path | None, typer.Option("--weights", help="File that fedrc assign wrote.")
]
State = Annotated[
    Path | None,
    typer.Option(help="Or the state directory of a client that trained."),
]
Hard = Annotated[
    bool | None,
    typer.Option(
        "--hard/--soft", help="The likeliest model alone, or the mixture; default: as the run."
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        help="A function that the run names, or a .pt2 file: let it be executed. Repeatable.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


def add_commands(app: typer.Typer) -> None:
    """Add these commands to ``fedrc``."""
    for command in (assign, predict, export, serve):
        app.command(rich_help_panel="Use the result")(command)


def assign(
    run: Run,
    out: Annotated[Path, typer.Option(help="Output file for the weights (JSON).")],
    data: Data = None,
    client: Client = None,
    device: Device = "cpu",
    trust_code: Trust = None,
) -> None:
    """Find a client's mixture weights from its labelled samples, and say how certain they are."""
    from fedrc_flwr.inference import assign as find
    from fedrc_flwr.inference import read_labelled, scenario_client, write_weights

    try:
        _either("--data", data, "--client", client)
        trained = _load(run, device, trust_code)
        samples = (
            read_labelled(data, trained.schema)
            if data is not None
            else scenario_client(trained.config, str(client)).fit
        )
        found = find(trained, samples)
        try:
            write_weights(out, trained, found.weights, found.to_dict())
        except OSError as error:
            raise ConfigError(f"--out {out}: {error}") from None
    except FedRCError as error:
        raise _refused(error) from None
    for line in _lines(found):
        typer.echo(line)
    typer.echo(f"weights in {out}")


def predict(
    run: Run,
    out: Annotated[Path, typer.Option(help="Output file: .csv, .parquet or .npz.")],
    data: Data = None,
    client: Client = None,
    weights: WeightsFile = None,
    state: State = None,
    hard: Hard = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities/--labels", help="With probabilities, or labels only.")
    ] = True,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 1024,
    device: Device = "cpu",
    trust_code: Trust = None,
) -> None:
    """Predict labels for unlabelled samples or, with --client, for a client's test part."""
    from fedrc_flwr.inference import in_batches, read_batches, scenario_client, write_predictions
    from fedrc_flwr.inference import predict as predicted
    from fedrc_flwr.inference.prediction import check_output

    try:
        _either("--data", data, "--client", client)
        check_output(out)
        trained = _load(run, device, trust_code)
        mine = _weights(trained, weights, state)
        batches = (
            read_batches(data, trained.schema, batch)
            if data is not None
            else in_batches(scenario_client(trained.config, str(client)).test, batch)
        )
        tally = write_predictions(
            out, predicted(trained, mine, batches, hard), trained.schema.classes, probabilities
        )
    except FedRCError as error:
        raise _refused(error) from None
    typer.echo(f"{tally.samples} predictions in {out}")
    if tally.accuracy is not None:
        typer.echo(f"accuracy on the {tally.labelled} samples with a label: {tally.accuracy:.6f}")


def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="model.pt2 (torch.export) or model.onnx.")],
    weights: WeightsFile = None,
    state: State = None,
    hard: Hard = None,
    trust_code: Trust = None,
) -> None:
    """Write one client's model as a single file that runs without this package."""
    from fedrc_flwr.inference import export_model
    from fedrc_flwr.inference.export import check_export
    from fedrc_flwr.inference.prediction import runs_hard

    try:
        check_export(out)
        trained = _load(run, "cpu", trust_code)
        mine = _weights(trained, weights, state)
        export_model(out, trained, mine, runs_hard(trained) if hard is None else hard)
    except FedRCError as error:
        raise _refused(error) from None
    typer.echo(f"model in {out}, {out.stat().st_size} bytes")


def serve(
    model: Annotated[Path, typer.Argument(help="A run, a checkpoint, or an exported model.")],
    weights: WeightsFile = None,
    state: State = None,
    hard: Hard = None,
    name: Annotated[str, typer.Option(help="The model's name in requests.")] = "fedrc",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0: any free one.")] = 8001,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port for HTTP and /metrics.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that requests must show.")
    ] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Authority of the certificates that clients must have, PEM.")
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Serve whoever reaches --host, without a token.")
    ] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="Most samples per model call.")] = 256,
    batch_delay_ms: Annotated[
        float, typer.Option(min=0, help="How long to wait for more samples.")
    ] = 0.0,
    max_requests: Annotated[int, typer.Option(min=1, help="Most requests in progress.")] = 1024,
    max_message_mb: Annotated[float, typer.Option(min=0.001, help="Largest request.")] = 16.0,
    request_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long a request may take to arrive.")
    ] = 10.0,
    max_connections: Annotated[int, typer.Option(min=1, help="Most HTTP connections.")] = 1024,
    max_per_address: Annotated[int, typer.Option(min=1, help="Of these from one address.")] = 256,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="Time to finish requests on shutdown.")
    ] = 30.0,
    device: Device = "cpu",
    trust_code: Trust = None,
) -> None:
    """Serve one client's model over the Open Inference Protocol (v2), until stopped."""
    from fedrc_flwr.inference import ServeOptions, load_exported, personal
    from fedrc_flwr.inference import serve as run
    from fedrc_flwr.inference.prediction import runs_hard
    from fedrc_flwr.inference.trained import is_checkpoint

    try:
        if is_checkpoint(model):
            trained = _load(model, device, trust_code)
            mine = _weights(trained, weights, state)
            served = personal(trained, mine, runs_hard(trained) if hard is None else hard)
        else:
            if weights is not None or state is not None or hard is not None:
                raise ConfigError(f"{model}: an exported model has its weights built in: give none")
            served = load_exported(model, trust_code or ())
        options = ServeOptions(
            name=name, host=host, port=port, http_port=http_port, tls_cert=tls_cert,
            tls_key=tls_key, max_batch=max_batch,
            batch_delay=batch_delay_ms / 1000, max_requests=max_requests,
            max_message_bytes=int(max_message_mb * 2**20), grace=grace_seconds,
            token_file=token_file, client_ca=client_ca, open=open_to_all,
            request_seconds=request_seconds, max_connections=max_connections,
            max_per_address=max_per_address,
        )  # fmt: skip
        run(served, options, typer.echo)
    except FedRCError as error:
        raise _refused(error) from None


def _load(path: Path, device: str, trust_code: list[str] | None) -> Trained:
    from fedrc_flwr.inference import load_trained

    return load_trained(
        path, device, lambda text: typer.echo(f"fedrc: {text}", err=True), trust_code or ()
    )


def _weights(trained: Trained, weights: Path | None, state: Path | None) -> Weights:
    from fedrc_flwr.inference import read_weights, state_weights

    _either("--weights", weights, "--state", state)
    if weights is not None:
        return read_weights(weights, trained)
    return state_weights(Path(str(state)), trained)


def _either(one: str, first: object, other: str, second: object) -> None:
    if (first is None) == (second is None):
        found = "neither" if first is None else "both"
        raise ConfigError(f"expected either {one} or {other}, found {found}")


def _refused(error: FedRCError) -> typer.Exit:
    typer.echo(f"fedrc: {error}", err=True)
    return typer.Exit(MISUSED)


def _lines(found: Assignment) -> list[str]:
    """An assignment in words."""
    pairs = zip(found.weights.clusters, found.weights.values, strict=True)
    lines = [
        "mixture weights: " + "  ".join(f"cluster {c}: {value:.4f}" for c, value in pairs),
        f"entropy {found.entropy:.3f} nats, margin {found.margin:.3f}",
        f"with half of the samples left out: {found.agreement:.0%} give the same cluster, "
        f"weights move by {found.movement:.3f}",
        f"cluster {found.weights.best} is the right one with a probability of at least "
        f"{found.sureness:.2f}, from {found.samples} samples",
        f"{len(found.unfamiliar)} of {found.samples} samples disagree with every cluster "
        f"({found.unfamiliar_share:.0%})",
    ]
    if found.unseen_concept:
        lines.append(
            "this federation has not seen this client's concept: do not rely on its predictions"
        )
    elif found.sureness < 0.9:
        lines.append("more labelled samples would make this more certain")
    return lines
