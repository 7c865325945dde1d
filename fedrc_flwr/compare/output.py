"""What a comparison leaves: tables, pictures and a page of what is done so far."""

from __future__ import annotations

from pathlib import Path

from fedrc_flwr.compare import pictures
from fedrc_flwr.compare.page import write_page
from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.compare.results import lines
from fedrc_flwr.compare.tables import write_tables


def write_results(directory: Path, comparison: Comparison) -> list[Path]:
    """All tables and pictures of what is done so far, and the page, if anything is."""
    table = lines(directory, comparison)
    paths = write_tables(directory, comparison, table)
    paths += pictures.draw_curves(directory, comparison, table)
    paths += pictures.draw_clusters(directory, comparison, table)
    return [*paths, write_page(directory, comparison, table)] if table else paths
