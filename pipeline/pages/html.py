"""Pages as one HTML file that needs nothing else: pictures lie inside it.

A page's template extends `page.html.j2`, which has the head and the style sheet, and
takes tables and pictures from `elements.html.j2`.
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
        package: Where the template lies, such as ``"trainer.report"``.
        template: Name of its file.
        page: What the page says, by the name ``page`` in the template; has a title.

    Returns:
        HTML. All text in it is escaped.
    """
    return _templates(package).get_template(template).render(page=page)


@functools.cache
def _templates(package: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(each, "") for each in (package, "pipeline.pages")]
        ),
        autoescape=True,  # Anybody may have made the names in runs and stores.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
