"""Settings of the documentation site: ``python3 dev.py docs`` builds it into build/docs."""

import importlib.util
import os
import sys
import tomllib
from pathlib import Path

import matplotlib as mpl

import lucidae
from lucidae_app.report.page import laboratory_page, write_page

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
mpl.use("Agg")

project = "lucidae"
described = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
author = ", ".join(person["name"] for person in described["project"]["authors"])
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = lucidae.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "api_members",
    "dark_figures",
    "mathml",
    "page_trees",
]
exclude_patterns = ["_*", "auto_examples/**/*.ipynb", "**/sg_execution_times.rst"]
templates_path = ["_templates"]
default_role = "code"
smartquotes = False
toc_object_entries_show_parents = "hide"
nitpicky = True
nitpick_ignore = [("py:class", "collections.abc.Callable")]
suppress_warnings = ["config.cache"]

# Pages below others; "*" stands for the other pages in the folder of an index.
page_children = {
    "index": [
        "Get started <getting_started>",
        "Guides <guide/index>",
        "Reference <api/index>",
        "Results and theory <project>",
    ],
    "guide/index": [
        "*",
        "howto/index",
        "Gallery <auto_examples/index>",
        "missing",
        "completion",
        "reduced_rank",
        "full-covariance",
        "meg",
        "migration",
        "comparison",
    ],
    "api/index": ["*", "certificates/index", "data", "command_line", "glossary"],
    "project": [
        "results/index",
        "benchmarks/index",
        "theory/index",
        "lab",
        "reliability",
        "architecture",
        "contributing",
        "changelog",
    ],
}

# Markdown: mathematics between dollars, definition lists, and links to headings.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 4

# Reference pages. Types stand in the tables of parameters, and not in the signatures.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
autodoc_mock_imports = [
    name for name in ("torch", "lightning", "mne") if importlib.util.find_spec(name) is None
]
numpydoc_show_class_members = False
numpydoc_use_plots = False

# The gallery, where the examples are; ``LUCIDAE_QUICK_DOCS=1`` shows them without running them.
if (Path(__file__).parents[1] / "examples").is_dir():
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": "../examples",
        "gallery_dirs": "auto_examples",
        "filename_pattern": "plot_",
        "subsection_order": [f"../examples/{name}" for name in ("linear", "dropout", "sparsity")],
        "within_subsection_order": "FileNameSortKey",
        "doc_module": ("lucidae",),
        "image_srcset": ["2x"],
        "remove_config_comments": True,
        "show_memory": False,
        "show_signature": False,
        "min_reported_time": 1e9,
        "write_computation_times": False,
        "download_all_examples": False,
        "abort_on_example_error": True,
        "plot_gallery": os.environ.get("LUCIDAE_QUICK_DOCS") != "1",
        "capture_repr": ("_repr_html_", "__repr__"),
    }

html_title = "lucidae"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "header_links_before_dropdown": 4,
    "logo": {
        "text": "lucidae",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navbar_align": "left",
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_nav_level": 1,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"getting_started": [], "index": [], "changelog": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False


def write_laboratory(app, error):
    """Write the laboratory beside the built pages."""
    if error is None and app.builder.format == "html":
        write_page(Path(app.outdir) / "laboratory.html", laboratory_page())


def setup(app):
    """Connect the end of the build."""
    app.connect("build-finished", write_laboratory)
