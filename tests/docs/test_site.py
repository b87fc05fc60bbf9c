"""The site is built without a warning, and describes every public name."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, name_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, in a folder of its own; the gallery was run."""
    pytest.importorskip("sphinx_gallery")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-c", "docs"]
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", ".", folder / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def described(site):
    """Every name that a page describes."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    return {
        name
        for role, objects in getattr(inventory, "data", inventory).items()
        if role.startswith("py:")
        for name in objects
    }


def test_every_public_class_and_function_is_described(site):
    """Constants and names of types say what they are where they are used."""
    names, missing = described(site), []
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for module in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8")):
            room = importlib.import_module(module)
            for name in getattr(room, "__all__", ()):
                value = getattr(room, name)
                if not (inspect.isclass(value) or inspect.isfunction(value)):
                    continue
                if not {f"{module}.{name}", f"spgnn.{name}"} & names:
                    missing.append(f"{module}.{name} in {name_of(page)}")
    assert not missing


def test_nothing_is_fetched_from_elsewhere(site):
    """Fonts, scripts and styles come with the site, so it is whole without a network."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)", text
        )
        assert not fetched, (page, fetched)
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), (
            style
        )


def test_the_site_begins_where_it_is_opened(site):
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")
