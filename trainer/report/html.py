"""The report as one HTML file that needs nothing else: pictures lie inside it."""

import functools

from pipeline.store.errors import MissingPackageError

try:
    import jinja2
except ImportError as error:
    raise MissingPackageError(
        f"writing a report needs jinja2 ({error}); pip install 'vast-rl[report]'"
    ) from error

from trainer.report.page import Page

_TEMPLATE = "report.html.j2"


def render(page: Page) -> str:
    """Writes the page.

    Args:
        page: What it says.

    Returns:
        HTML. All text in it is escaped.
    """
    return _template().render(page=page)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainer.report", ""),
        autoescape=True,  # Names come from runs, which anybody may have made.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE)
