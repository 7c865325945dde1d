"""The resident node as a program, which `fedrc supernode` becomes."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.node.resident import run_node

if __name__ == "__main__":
    sys.exit(run_node(Path(sys.argv[1]), "--alone" in sys.argv[2:]))
