"""Parts of a store, written without Beam."""

from pipeline.assembly.parts import write_parts
from pipeline.assembly.plan import PartPlan
from pipeline.store.manifest import PartManifest


def write_alone(*plans: PartPlan) -> list[PartManifest]:
    """Writes each part in a run of its own, as many workers do."""
    return [part for plan in plans for part in write_parts([plan])]
