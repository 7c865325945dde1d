"""Every error that this package raises on purpose."""

from __future__ import annotations

#: Exit codes: the run failed; the command was used wrongly; the user stopped it.
FAILED, MISUSED, STOPPED = 1, 2, 130
#: Why a client that did not answer in time is left out of a round.
LATE = "no reply before the deadline"


class FedRCError(Exception):
    """Base of all errors below: the message says what is wrong and what to do next."""


class ConfigError(FedRCError):
    """A configuration key is unknown, of the wrong type, or out of range."""


class DataError(FedRCError):
    """A dataset or a client's share of it cannot be used.

    Parameters
    ----------
    code : the kind of problem in one word, without anything from the data; see
        ``engine.admission.REASONS``
    column : the column of the schema that is to blame, if it is one
    """

    def __init__(self, message: str, code: str = "data", column: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.column = column


class PolicyError(FedRCError):
    """A node does not let a run do what it asks for.

    Parameters
    ----------
    code : a key of ``engine.admission.REASONS``
    subject : the setting of the run that is to blame, or the hash of its app
    """

    def __init__(self, code: str, subject: str = "") -> None:
        super().__init__(f"refused by the policy in node.yaml: {code} {subject}".rstrip())
        self.code = code
        self.subject = subject


class CheckpointError(FedRCError):
    """A checkpoint is missing, torn, or does not fit this run."""


class DivergedError(FedRCError):
    """Training or scoring gave numbers that are not finite."""


class WeightsError(FedRCError):
    """Weights over clusters are not a distribution: finite, not negative, summing to one."""


class WireError(FedRCError):
    """A message does not follow the schema: wrong version, shape, or value."""


class RunError(FedRCError):
    """The run cannot continue: too few clients, or too few usable replies."""
