"""The site: `sphinx-build -W -c docs . out/docs`. Its sources are the very files that are read in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from paceline import __version__

ROOT = Path(__file__).parents[1]

project = "paceline"
release = version = __version__
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "README*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "benchmarks/README.md",
    "examples/**/README.md",
]
exclude_patterns = [".*", "out", "src", "tests", "mutants", "dist", "build", "benchmarks/recorded"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "paceline"
html_additional_pages = {"index": "first.html"}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4  # as in the repository: #words-of-the-heading
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}
napoleon_use_rtype = False


def folders(app: Sphinx, doctree: nodes.document) -> None:
    """A link to a folder leads to its README, or else to the list of all pages; other links must lead to a page."""
    here = app.env.docname
    for link in list(doctree.findall(pending_xref)):
        target = (ROOT / here).parent / link["reftarget"]
        if target.is_dir():
            name = f"{target.resolve().relative_to(ROOT)}/README"
            page = name if name in app.env.found_docs else app.config.root_doc
            to = {"refdomain": "std", "reftype": "doc", "reftarget": f"/{page}", "refdoc": here, "refexplicit": True}
            link.replace_self(pending_xref("", *link.children, **to))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", folders)
    return {"parallel_read_safe": True}
