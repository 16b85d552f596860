"""Writes pages that are one HTML file, with style sheet and pictures inside.

The template of a page extends `page.html.j2`, which has the head and the style sheet,
and imports the macros for tables and pictures from `elements.html.j2`.
"""

import functools
from typing import Any

from pipeline.store.errors import MissingPackageError

try:
    import jinja2
except ImportError as error:
    raise MissingPackageError(
        f"writing a page needs jinja2 ({error}); pip install 'vast-rl[report]'"
    ) from error


def render(package: str, template: str, page: Any) -> str:
    """Writes a page.

    Args:
        package: Package that holds the template, such as ``"trainer.report"``.
        template: File name of the template.
        page: Object that the template knows as ``page``; it has a ``title``.

    Returns:
        HTML, in which all text is escaped.
    """
    return _templates(package).get_template(template).render(page=page)


@functools.cache
def _templates(package: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, "") for name in (package, "pipeline.pages")]
        ),
        # Runs and stores may come from strangers, who have chosen the names in them.
        autoescape=True,
        # A misspelt name in a template is an error, and not an empty place on the page.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
