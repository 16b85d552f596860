"""Turns LaTeX into MathML, which browsers draw without a script."""

import html
import re

import math_core

_TO_MATHML = math_core.LatexToMathML(
    macros={"E": r"\mathbb{E}", "sg": r"\operatorname{sg}"}, fancy_error=False
)
# The HTML in which pymdownx.arithmatex wraps LaTeX.
_MARKED = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)


def draw(page: str) -> str:
    """Replaces the LaTeX of a page by MathML.

    Args:
        page: HTML of the page.

    Returns:
        HTML with MathML.

    Raises:
        math_core.LatexError: If an equation is not LaTeX.
    """

    def convert(marked: re.Match[str]) -> str:
        block = marked[1] == "div"
        drawn: str = _TO_MATHML.convert_with_local_state(
            html.unescape(marked[2]).strip(), displaystyle=block
        )
        return f'<div class="equation" tabindex="0">{drawn}</div>' if block else drawn

    return _MARKED.sub(convert, page)
