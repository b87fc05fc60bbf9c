"""The site is built without a warning, and describes every public name."""

from __future__ import annotations

import importlib
import inspect
import re
import sys

import pytest

from tests.docs.pages import ROOT, names_of_users, printed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, in a folder of its own; the gallery was run."""
    pytest.importorskip("sphinx_gallery")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-c", "docs"]
    printed([*command, "-d", folder / "doctrees", ".", folder / "html"], ROOT)
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


def test_every_class_and_function_that_is_promised_is_described(site):
    """Constants and names of types say what they are where they are used."""
    names = described(site)
    missing = [
        f"{module}.{name}"
        for module, promised in names_of_users().items()
        for name in promised
        if inspect.isclass(value := getattr(importlib.import_module(module), name))
        or inspect.isfunction(value)
        if not {f"{module}.{name}", f"spgnn.{name}"} & names
    ]
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
