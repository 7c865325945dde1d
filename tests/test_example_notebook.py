"""The notebook among the examples, executed by a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "examples" / "federation.ipynb"


def test_notebook_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells

    assert all(not cell.outputs for cell in cells if cell.cell_type == "code")


def test_notebook_tells_its_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    NotebookClient(notebook, timeout=500, resources={"metadata": {"path": tmp_path}}).execute()

    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    shown = [o.get("data", {}) for o in outputs]
    assert sum("image/png" in data for data in shown) == 4
    markup = [data["text/html"] for data in shown if "text/html" in data]
    # FedAvg and FedRC each with a bar that reached its end, and FedRC with the two code books.
    assert sum('<progress value="40" max="40">' in text for text in markup) == 2
    *tables, page = markup
    [found] = [text for text in tables if "<td>" in text and "FedRC" in text]
    assert ">office A, office B, office D, office E, office G<" in found
    assert ">office C, office F, office H<" in found
    assert "<iframe" in page
    told = "".join(o["text"] for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert "model of office I" in told
    assert not [o for o in outputs if o.get("name") == "stderr"]
