"""Debian's Chromium, headless and without a network, for tests that look at a page."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PACKAGES = ("chromium", "chromium-driver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"


def install() -> tuple[str, str]:
    """Chromium and its driver: those of this machine, else from Debian; else skip by name."""
    missing = "Debian's packages chromium and chromium-driver are not installed"
    if not _found() and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", *PACKAGES]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for prepare in (["true"], ["apt-get", "update"]):
            subprocess.run(prepare, capture_output=True, check=False, timeout=240)
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=540, env=quiet
            )
            missing = f"{missing}; apt-get could not: {(done.stderr or done.stdout)[-300:]}"
            if _found():
                break
    found = _found()
    if found is None:
        pytest.skip(missing)
    return found


def _found() -> tuple[str, str] | None:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class Browser:
    """One window."""

    def __init__(self, profile: Path, network: bool = False) -> None:
        chromium, driver = install()
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}", *(() if network else (NO_NETWORK,))):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        if not network:
            self.driver.execute_cdp_cmd("Network.enable", {})
            self.driver.execute_cdp_cmd(
                "Network.emulateNetworkConditions",
                {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
            )
        self.look()

    def look(self, width: int = 1280, dark: bool = False) -> None:
        """Set the width of the window and the theme that the user prefers."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})

    def open(self, address: str) -> None:
        """Open a page and wait until it has drawn itself."""
        self.driver.get(address)
        self.wait(lambda: self.run("return document.documentElement.dataset.drawn") is not None)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Any, seconds: float = 60) -> None:
        WebDriverWait(self.driver, seconds, 0.1).until(lambda _: condition())

    def find(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def errors(self) -> list[dict[str, Any]]:
        """What the console has complained of since the last call."""
        return [e for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> bytes:
        """The whole page as PNG."""
        size = self.run("const e = document.documentElement; return [innerWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        taken = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        content = base64.b64decode(taken["data"])
        path.write_bytes(content)
        return content

    def close(self) -> None:
        self.driver.quit()
