"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "fedrc-flwr"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "fedrc-flwr"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
# A page that is not in the index yet is built too; the tables of keys have small headings; words of
# a parameter's description may be names of several attributes.
suppress_warnings = ["toc.not_included", "myst.header", "ref.python"]
