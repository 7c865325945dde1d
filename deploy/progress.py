"""What `fedrc run` says while a run starts: who is there, and what it waits for."""

from __future__ import annotations

from fedrc_flwr.report.log import Event


def lines_of(event: Event, server_file: str) -> list[str]:
    """An event of a run's start as lines for the terminal; none for all other events."""
    match event.get("event"):
        case "nodes":
            return [_nodes(event)]
        case "submitted":
            return [f"submitted as Flower's run {event['run_id']}; waiting for the server app"]
        case "pending":
            return [
                f"the run has not been picked up for {event['seconds']:.0f} seconds: is "
                f"`fedrc serverapp {server_file}` running?"
            ]
        case "retry":
            return [f"attempt {event['attempt']} failed, trying again: {event['reason']}"]
        case "enrolled":
            return [f"{event['client']} enrolled: {event['role']}, {event['samples']} samples"]
        case "refused":
            return [f"{event['client']} is not enrolled: {event['reason']}"]
        case "waiting":
            return [_waiting(event)]
    return []


def _nodes(event: Event) -> str:
    online, offline = event["online"], event["offline"]
    if not online and not offline:
        return (
            "no nodes are registered: `fedrc node key` on a node, `fedrc node register` on the "
            "server"
        )
    parts = [f"online: {', '.join(online) or 'none'}"]
    if offline:
        parts.append(f"offline: {', '.join(offline)}")
    return f"nodes {'; '.join(parts)}"


def _waiting(event: Event) -> str:
    """Who is there and who is missing, by name."""
    there = [*event["training"], *event["observing"]]
    wanted = max(event["trainers"], event["everybody"])
    noun = "training clients" if event["everybody"] <= event["trainers"] else "clients"
    parts = [f"{len(there)} of {wanted} {noun}: {', '.join(there)}" if there else
             f"0 of {wanted} {noun}"]  # fmt: skip
    for key, words in (
        ("asked", "no answer yet from"),
        ("offline", "offline"),
        ("refused", "not enrolled"),
    ):
        if event[key]:
            parts.append(f"{words} {', '.join(event[key])}")
    return f"waiting for clients, up to {event['seconds']} more seconds; {'; '.join(parts)}"
