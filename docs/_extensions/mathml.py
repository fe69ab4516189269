"""Formulas as MathML, which browsers draw by themselves: no script and no font is loaded.

LaTeX is converted by docutils, when the site is built. A command that docutils does not know is a
warning, and so an error of the build.
"""

import html
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOGGER = logging.getLogger(__name__)
LONG = 45
"""Number of characters of LaTeX from which a formula may be wider than a narrow screen."""

SPELLINGS = {
    r"\\dots[cb]?(?![a-zA-Z])": r"\\ldots",
    r"\\bm(?![a-zA-Z])": r"\\boldsymbol",
    r"\\(big|Big|bigg|Bigg)(?![a-zA-Z])": r"\\\1l",
    r"(\\[td]?frac)(\d)(\d)": r"\1{\2}{\3}",
    r"(\\[td]?frac)(\d)(?!\d)": r"\1{\2}",
    # Without the empty group the subscript of a symbol with an accent is drawn below the symbol.
    r"(\\(?:hat|bar|tilde|dot|ddot|check) *(?:\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]) *)_": r"\1{}_",
}
"""Commands of LaTeX that docutils does not know or misreads, as patterns, and what it knows."""


def _fixed_height(bar):
    """Return the opening tag of a double bar that does not grow, unless its height is given."""
    return bar[0] if "stretchy" in bar[1] else f'<mo{bar[1]} stretchy="false">‖'


def converted(node, as_block):
    """Return a formula as MathML, or its source after a warning."""
    words = node.astext().strip()
    for pattern, known in SPELLINGS.items():
        words = re.sub(pattern, known, words)
    try:
        # Without this the two bars of a norm differ in height where one of them has an exponent.
        return re.sub(r"<mo([^>]*)>‖", _fixed_height, tex2mathml(words, as_block=as_block))
    except MathError as error:
        LOGGER.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


class Punctuation(SphinxPostTransform):
    """Attach the punctuation behind a formula to it: browsers would break the line before it."""

    default_priority = 400

    def run(self):
        """Move the punctuation from the text behind each formula to the formula."""
        for formula in list(self.document.findall(nodes.math)):
            text = formula.next_node(descend=False, siblings=True)
            if isinstance(text, nodes.Text):
                mark = re.match(r"[.,;:!?)\]]*", text)[0]
                formula["punctuation"] = mark
                text.parent.replace(text, nodes.Text(text[len(mark) :]))


def visit_inline(writer, node):
    """Write a formula inside of a line; a long one has a line of its own on narrow screens."""
    kind = "formula-long" if len(node.astext()) > LONG else "formula-short"
    formula = converted(node, as_block=False) + node.get("punctuation", "")
    writer.body.append(f'<span class="{kind}">{formula}</span>')
    raise nodes.SkipNode


def visit_block(writer, node):
    """Write a formula of its own line, with its number if it has one."""
    identifier = f' id="{node["ids"][0]}"' if node.get("ids") else ""
    writer.body.append(f'<div class="formula"{identifier}>{converted(node, as_block=True)}')
    if node.get("number"):
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="formula-number">({number})</span>')
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer under the name `mathml` and choose it."""
    app.add_post_transform(Punctuation)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("config-inited", choose)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def choose(app, config):  # noqa: ARG001 - the form that Sphinx calls
    """Make this renderer the one of the HTML pages."""
    config.html_math_renderer = "mathml"
