"""What an image installs, read from pyproject.toml: no simulation engine.

python3 docker/requirements.py pyproject.toml [--without torchvision]
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path


def requirements(project: Path, without: str = "") -> list[str]:
    """The project's dependencies as an image needs them."""
    with open(project, "rb") as file:
        declared = tomllib.load(file)["project"]
    listed: list[str] = declared["dependencies"]
    # Ray is for virtual clients on one machine; a container is a real one.
    plain = [line.replace("flwr[simulation]", "flwr") for line in listed]
    return [line for line in plain if re.split(r"[^\w.-]", line, maxsplit=1)[0] != without]


def main() -> None:
    """Print them, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--without", default="", help="a package to leave out")
    arguments = parser.parse_args()
    print("\n".join(requirements(arguments.project, arguments.without)))


if __name__ == "__main__":
    main()
