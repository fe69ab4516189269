"""Tests of HTML pages in headless Chromium."""

import html
import json
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def need_browser():
    """Return the path of Chromium; skip the test without it, since pip cannot install it."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium was found: install Debian's package chromium, for example")
    return browser


def dumped(path, folder, *flags, seconds=120):
    """Return the document of the page at `path` as Chromium has it after its scripts have run."""
    command = [need_browser(), *FLAGS, *flags, f"--user-data-dir={folder}", "--dump-dom"]
    result = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=seconds, check=True
    )
    return result.stdout


def results_in(document):
    """Return what the script of a test wrote as JSON into the element with the name results."""
    found = re.search(r'<pre id="results">(.*?)</pre>', document, re.DOTALL)
    assert found, "the script of the test did not finish"
    return json.loads(html.unescape(found[1]))
