"""Server checkpoints and client states on disk: one file each, see ``tensor_file``.

NaN and infinity are neither written nor read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedrc_flwr.em import AdamMoments
from fedrc_flwr.errors import CheckpointError, DivergedError
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState
from fedrc_flwr.tensor_file import Arrays, read_file, write_atomically

CHECKPOINTS = "checkpoints"  # directory within a run's directory
#: Smallest number of states that a client keeps, for a server that resumes an older checkpoint.
KEPT_STATES = 4
VECTOR = "vector/"  # prefix of the networks that a client keeps
KEPT = "kept/"  # prefix of the arrays that an algorithm keeps in the server's state
NOT_FINITE = "holds numbers that are not finite"
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """A server state, and what is needed to use its models: configuration and shapes."""

    state: ServerState
    config: dict[str, Any]
    input_shape: tuple[int, ...]
    classes: int
    layout: str


def save_checkpoint(directory: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write ``round-NNNNNN.safetensors`` and delete all but the newest ``keep`` files.

    Checkpoints of later rounds are deleted too: a run that went back repeats those rounds.
    """
    if not checkpoint.state.is_finite():
        raise CheckpointError(
            f"the state after round {checkpoint.state.round} {NOT_FINITE}: it is not saved"
        )
    arrays, about = _pack_server(checkpoint)
    path = _round_path(directory, checkpoint.state.round)
    write_atomically(path, arrays, about)
    _prune(directory, checkpoint.state.round, keep)
    return path


def load_checkpoint(path: Path, models: bool = True) -> Checkpoint:
    """Read one checkpoint, or say what is wrong with it.

    Without ``models`` only the clients' records are read, which is fast.
    """
    arrays, about = read_file(path, "" if models else "label_counts/")
    checkpoint = _unpacked(path, lambda: _unpack_server(arrays, about, models))
    if not checkpoint.state.is_finite():
        raise CheckpointError(f"{path} {NOT_FINITE}")
    return checkpoint


def latest_checkpoint(directory: Path, models: bool = True) -> tuple[Checkpoint, list[str]]:
    """The newest readable checkpoint, and a message for each newer one that is not readable."""
    problems: list[str] = []
    for path in _newest_first(directory):
        try:
            return load_checkpoint(path, models), problems
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError(
        f"no readable checkpoint in {directory}" + "".join(f"; {problem}" for problem in problems)
    )


def rewrite_checkpoints(directory: Path, change: Callable[[ServerState], ServerState]) -> int:
    """Replace every checkpoint by what ``change`` makes of it; returns how many there are.

    All are read before the first is written, so that one that cannot be read changes nothing.
    """
    changed = {path: load_checkpoint(path) for path in _newest_first(directory)}
    for path, checkpoint in changed.items():
        write_atomically(path, *_pack_server(replace(checkpoint, state=change(checkpoint.state))))
    return len(changed)


def find_checkpoint(directory: Path, round_number: int) -> Path:
    """The checkpoint of one round, or an error that lists the rounds that have one."""
    path = _round_path(directory, round_number)
    if not path.exists():
        rounds = sorted(_round_of(each) for each in _newest_first(directory))
        raise CheckpointError(
            f"{directory}: no checkpoint of round {round_number}; there are checkpoints of rounds: "
            + (", ".join(map(str, rounds)) or "none")
        )
    return path


def has_checkpoint(run: Path) -> bool:
    """Whether a run's directory holds anything to resume from."""
    return any(_newest_first(run / CHECKPOINTS))


def save_client_state(
    directory: Path, state: ClientState, keep: int = KEPT_STATES, durable: bool = True
) -> None:
    """Write a client's state after a round; ``keep`` states are kept in all.

    A repeated round needs the state from before it, see ``load_client_state``. States of later
    rounds are deleted, because the run went back and repeats those rounds.
    """
    arrays, about = pack_client(state)
    write_atomically(_round_path(directory, state.round), arrays, about, durable)
    _prune(directory, state.round, keep)


def load_client_state(
    directory: Path, before_round: int, warn: Callable[[str], None] = lambda text: None
) -> ClientState | None:
    """The newest state from before a round, or None if there is none.

    The server may repeat a round after a crash, or if too few clients replied. The repeated E-step
    then starts from the same weights as the first one.

    Parameters
    ----------
    warn : called for each newer state that is skipped because it is not finite or not readable
    """
    problems: list[str] = []
    for path in _newest_first(directory):
        if _round_of(path) >= before_round:
            continue
        try:
            contents = read_file(path)
            return _unpacked(path, lambda c=contents: unpack_client(*c))  # type: ignore[misc]
        except DivergedError as error:
            warn(f"{path}: {error}")
        except CheckpointError as error:
            warn(str(error))
            problems.append(str(error))
    if problems:
        raise CheckpointError("; ".join(problems) + "; delete it to start from uniform weights")
    return None


def count_releases(directory: Path) -> int:
    """How many noisy statistics a client has sent: the largest count of all its states.

    The states' arrays are not read, so that a state counts even if it cannot be used.
    """
    counts = []
    for path in _newest_first(directory):
        try:
            about = read_file(path, prefix=None)[1]
            counts.append(_unpacked(path, lambda a=about: int(a["releases"])))  # type: ignore[misc]
        except CheckpointError:
            continue  # loading reports files that cannot be read
    return max(counts, default=0)


def pack_client(state: ClientState) -> tuple[Arrays, dict[str, Any]]:
    """A client state as arrays and JSON; refused if it is not finite."""
    if not state.is_finite():
        raise DivergedError(f"the state after round {state.round} {NOT_FINITE}: it is not saved")
    arrays: Arrays = {"mixture_weights": state.mixture_weights}
    if state.responsibilities is not None:
        arrays["responsibilities"] = state.responsibilities
    if state.moments is not None:
        arrays["moments"] = state.moments.responsibilities
        arrays["first"] = state.moments.first
        arrays["second"] = state.moments.second
    arrays |= {f"{VECTOR}{name}": vector for name, vector in state.vectors.items()}
    about = {
        "round": state.round,
        "clusters": list(state.clusters),
        "releases": state.releases,
        "numbers": state.numbers,
    }
    return arrays, about


def unpack_client(arrays: Arrays, about: dict[str, Any]) -> ClientState:
    """The inverse of ``pack_client``."""
    moments = None
    if "moments" in arrays:
        moments = AdamMoments(arrays["moments"], arrays["first"], arrays["second"])
    state = ClientState(
        round=int(about["round"]),
        clusters=tuple(about["clusters"]),
        mixture_weights=arrays["mixture_weights"],
        moments=moments,
        responsibilities=arrays.get("responsibilities"),
        releases=int(about["releases"]),
        vectors={
            name.removeprefix(VECTOR): array
            for name, array in arrays.items()
            if name.startswith(VECTOR)
        },
        numbers=dict(about.get("numbers", {})),
    )
    if not state.is_finite():
        raise DivergedError(f"the state after round {state.round} {NOT_FINITE}: it is not used")
    return state


def _pack_server(checkpoint: Checkpoint) -> tuple[Arrays, dict[str, Any]]:
    state = checkpoint.state
    arrays: Arrays = {f"model/{c}": vector for c, vector in state.models.items()}
    if state.body is not None:
        arrays["body"] = state.body
    for slot, vectors in state.optimizer.items():
        arrays |= {f"optimizer/{slot}/{c}": vector for c, vector in vectors.items()}
    arrays |= {f"{KEPT}{name}": array for name, array in state.arrays.items()}
    clients = []
    for index, (name, record) in enumerate(sorted(state.clients.items())):
        if record.label_counts is not None:
            arrays[f"label_counts/{index}"] = record.label_counts
        if record.cross_losses is not None:
            arrays[f"cross_losses/{index}"] = record.cross_losses
        if record.fingerprint is not None:
            arrays[f"fingerprint/{index}"] = record.fingerprint
        if record.shares is not None:
            arrays[f"shares/{index}"] = record.shares
        clients.append(
            {
                "name": name,
                "role": record.role,
                "samples": record.samples,
                "noise": record.noise,
                "releases": record.releases,
                "spent": record.spent,
                "concept": record.concept,
                "style": record.style,
                "cluster": record.cluster,
                "loss": record.loss,
                "certainty": record.certainty,
                "strikes": record.strikes,
                "clean": record.clean,
                "silent": record.silent,
                "rests": record.rests,
                "opposed": record.opposed,
                "compared": record.compared,
            }
        )
    about = {
        "round": state.round,
        "clusters": list(state.clusters),
        "merged": sorted(state.membership.merged.items()),
        "parameters": state.parameters,
        "body_parameters": state.body_parameters,
        "optimizer_steps": state.optimizer_steps,
        "quiet_rounds": state.quiet_rounds,
        "numbers": state.numbers,
        "clients": clients,
        "config": checkpoint.config,
        "input_shape": list(checkpoint.input_shape),
        "classes": checkpoint.classes,
        "layout": checkpoint.layout,
    }
    return arrays, about


def _unpack_server(arrays: Arrays, about: dict[str, Any], models: bool) -> Checkpoint:
    clusters = tuple(int(c) for c in about["clusters"])
    optimizer: dict[str, dict[int, np.ndarray]] = {}
    for name, vector in arrays.items():
        if name.startswith("optimizer/"):
            _, slot, cluster = name.split("/")
            optimizer.setdefault(slot, {})[int(cluster)] = vector
    clients = {}
    for index, entry in enumerate(about["clients"]):
        name = entry.pop("name")
        clients[name] = ClientRecord(
            **entry,
            label_counts=arrays.get(f"label_counts/{index}"),
            cross_losses=arrays.get(f"cross_losses/{index}"),
            fingerprint=arrays.get(f"fingerprint/{index}"),
            shares=arrays.get(f"shares/{index}"),
        )
    state = ServerState(
        round=int(about["round"]),
        membership=Membership(clusters, {int(a): int(b) for a, b in about["merged"]}),
        models={c: arrays[f"model/{c}"] for c in clusters if models},
        body=arrays.get("body"),
        clients=clients,
        parameters=int(about["parameters"]),
        body_parameters=int(about["body_parameters"]),
        optimizer=optimizer,
        optimizer_steps=int(about["optimizer_steps"]),
        quiet_rounds=int(about["quiet_rounds"]),
        numbers=dict(about.get("numbers", {})),
        arrays={n.removeprefix(KEPT): a for n, a in arrays.items() if n.startswith(KEPT)},
    )
    return Checkpoint(
        state, about["config"], tuple(about["input_shape"]), int(about["classes"]), about["layout"]
    )


def _unpacked(path: Path, unpack: Callable[[], T]) -> T:
    try:
        return unpack()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: incomplete or of another kind ({error!r})") from None


def _round_path(directory: Path, round_number: int) -> Path:
    return directory / f"round-{round_number:06d}.safetensors"


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _newest_first(directory: Path) -> Iterator[Path]:
    paths = [p for p in directory.glob("round-*.safetensors") if p.stem[6:].isdecimal()]
    yield from sorted(paths, key=_round_of, reverse=True)


def _prune(directory: Path, newest: int, keep: int) -> None:
    """Delete files of rounds after ``newest``, and all but ``keep`` of the others.

    Also what is left of files that were being written when the process was killed.
    """
    for unfinished in directory.glob(".round-*.tmp.safetensors"):
        unfinished.unlink(missing_ok=True)
    paths = list(_newest_first(directory))
    later = [path for path in paths if _round_of(path) > newest]
    for path in later + paths[len(later) + keep :]:
        path.unlink(missing_ok=True)
