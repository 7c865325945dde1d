"""Who may take part in a run, and what a client tells about a failure.

A node's errors name its files and quote its data, so they stay in its own log. The server is sent a
code and, where one is to blame, a column of the schema, which the server knows anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrc_flwr import __version__
from fedrc_flwr.errors import ConfigError, DataError, DivergedError, PolicyError, WireError

#: The code of a node whose release differs, and of an error that has none of its own.
VERSION, FAILED = "version", "failed"
#: What each code means; the node's own log has the details.
REASONS = {
    VERSION: "it has fedrc-flwr {version}, but this run needs {ours}: install the same minor "
    "release on both sides",
    "settings": "a line of its node.yaml cannot be used",
    "no-data": "it has no data for this run: its node.yaml names no file in `data`",
    "other-schema": "its node.yaml names another schema than this run's",
    "unreadable": "its data cannot be read",
    "missing-column": "its table has no column {column}",
    "wrong-kind": "column {column} of its table does not hold what the schema says",
    "unknown-label": "column {column} of its table holds a label that the schema does not know",
    "wrong-shape": "its samples do not have this run's shape",
    "wrong-label": "its labels are not this run's classes",
    "data": "its data cannot be used",
    "app-not-allowed": "its policy does not allow this app. Its operator can compare the code and "
    "run there: fedrc node allow node.yaml {column}",
    "not-allowed": "its policy does not allow what this run asks for in {column}",
    "too-little-noise": "its policy demands more noise than {column} of this run adds",
    "too-large-clip": "its policy demands a smaller {column} than this run's",
    "epsilon-spent": "it has spent the epsilon that its policy allows",
    "too-few-samples": "its policy demands that more of its samples are trained on: lower {column}",
    "observer": "it observes, and is never trained on",
    "small-cohort": "its policy demands that more clients take part",
    FAILED: "something failed on it",
}
#: The codes that name a column.
COLUMN_CODES = ("missing-column", "wrong-kind", "unknown-label")
#: Errors about messages and numbers, which name neither files nor data.
HARMLESS = (DivergedError, WireError)


@dataclass(frozen=True)
class Refusal:
    """Why a client cannot take part.

    Parameters
    ----------
    name : the client's
    code : a key of ``REASONS``
    column : the column of the run's schema, the setting or the app that is to blame
    version : the client's release
    """

    name: str
    code: str
    column: str = ""
    version: str = ""

    def reason(self) -> str:
        """The reason in words, for the server's side."""
        reason = REASONS.get(self.code, "it gives a reason that this release does not know")
        column = repr(self.column) if self.column else "(its own log names it)"
        return reason.format(column=column, version=self.version, ours=__version__)


def refusal(error: Exception, name: str) -> Refusal:
    """What the server is told of an error while a client enrols."""
    if isinstance(error, DataError):
        return Refusal(name, error.code, error.column)
    if isinstance(error, PolicyError):
        return Refusal(name, error.code, error.subject)
    return Refusal(name, "settings" if isinstance(error, ConfigError) else FAILED)


def harmless(error: Exception) -> str:
    """What the server is told of an error in a round."""
    if isinstance(error, HARMLESS):
        return str(error)
    if isinstance(error, PolicyError):
        return Refusal("", error.code, error.subject).reason()
    return f"{type(error).__name__} on the client; its own log says more"


def same_minor(version: str) -> bool:
    """Whether a client's release can take part in a run of this one."""
    return version.split(".")[:2] == __version__.split(".")[:2]
