"""What a report says: sentences, tables and pictures, for HTML and Markdown alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.pages.elements import Picture, Table


@dataclass(frozen=True)
class Section:
    """What the page says of one run.

    Attributes:
        title: Heading.
        outcome: What the run reached, in a sentence.
        properties: Label and value of its data, settings and versions.
        remarks: Sentences above the pictures.
        pictures: Pictures in order.
        configuration: The whole configuration as JSON, which the page folds.
    """

    title: str
    outcome: str
    properties: Mapping[str, str]
    remarks: Sequence[str]
    pictures: Sequence[Picture]
    configuration: str


@dataclass(frozen=True)
class Comparison:
    """What the page says of methods beside each other.

    Attributes:
        pictures: Pictures in order.
        tables: Tables below the pictures.
        notes: Sentences on what is unequal between methods, and what is left out.
    """

    pictures: Sequence[Picture]
    tables: Sequence[Table]
    notes: Sequence[str]


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: Heading.
        lead: First sentence: what happened.
        sentences: Sentences on the best run of each task.
        tables: Tables of results.
        comparison: Comparison of methods; None if there is only one.
        sections: A section for each run.
        paper: The paper's rows for the tasks; None if it has none of them.
    """

    title: str
    lead: str
    sentences: Sequence[str]
    tables: Sequence[Table]
    comparison: Comparison | None
    sections: Sequence[Section]
    paper: Table | None
