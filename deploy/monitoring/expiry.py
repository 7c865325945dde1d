"""When certificates expire."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from deploy import certificates
from deploy.monitoring.catalogue import CERTIFICATE, Exposition
from fedrc_flwr.errors import ConfigError


def export_expiry(to: Exposition, **paths: Path) -> None:
    """When these certificates expire; one that cannot be read is left out."""
    for name, path in paths.items():
        with suppress(ConfigError, OSError):
            expiry = certificates.facts(certificates.load_certificate(path)).not_after
            to.add(CERTIFICATE.name, expiry.timestamp(), certificate=name)
