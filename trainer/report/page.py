"""What a report says: sentences, tables and pictures, whatever they are written as."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.pages.elements import Picture, Table


@dataclass(frozen=True)
class Section:
    """What the page says of one run.

    Attributes:
        title: Heading.
        outcome: What became of it, in a sentence.
        facts: Label and value of what to know of the run.
        remarks: Sentences above the pictures.
        pictures: In order.
        configuration: The whole configuration, as text, folded away.
    """

    title: str
    outcome: str
    facts: Mapping[str, str]
    remarks: Sequence[str]
    pictures: Sequence[Picture]
    configuration: str


@dataclass(frozen=True)
class Comparison:
    """What the page says of methods beside each other.

    Attributes:
        pictures: In order.
        tables: Below them.
        notes: What was pooled, what was not, and what is missing.
    """

    pictures: Sequence[Picture]
    tables: Sequence[Table]
    notes: Sequence[str]


@dataclass(frozen=True)
class Page:
    """All of a report.

    Attributes:
        title: Heading.
        lead: What happened, in a sentence.
        sentences: What more there is to say of it, task by task.
        tables: Of results.
        comparison: Of methods; None if there is one only.
        sections: One for each run.
        paper: The paper's rows; None if it has none of the tasks.
    """

    title: str
    lead: str
    sentences: Sequence[str]
    tables: Sequence[Table]
    comparison: Comparison | None
    sections: Sequence[Section]
    paper: Table | None
