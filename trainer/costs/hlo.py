"""Reading a compiled program: what runs, how often, and inside which loops.

The text is that of XLA's modules after all of its passes, for CPUs, GPUs and TPUs. What
it says is what runs: loops with their counts, fusions, collectives.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Operations that nothing is launched for.
_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
        *("while", "call", "conditional", "after-all", "partition-id"),
    }
)
_BYTES = {
    "pred": 1,
    "token": 0,
    "bf16": 2,
    **{f"{kind}{bits}": bits // 8 for kind in "usf" for bits in (8, 16, 32, 64)},
    "c64": 8,
    "c128": 16,
}
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_NAME = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
        name: Within the module.
        result: Type of what it returns, such as ``f32[8,512]{1,0}`` or a tuple of
            them.
        operation: Such as ``fusion``.
        rest: Operands and attributes.
    """

    name: str
    result: str
    operation: str
    rest: str

    def attribute(self, name: str) -> str | None:
        """Computation or number that an attribute names; None if it has none such."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None

    @property
    def operands(self) -> list[str]:
        """Names of what it reads."""
        return re.findall(r"%([\w.\-]+)", _closed(self.rest))

    @property
    def launched(self) -> bool:
        """Whether something runs for it: a kernel, a copy or a collective."""
        return not (
            self.operation in _FREE
            or self.operation.endswith("-done")
            or 'custom_call_target="AllocateBuffer"' in self.rest
            or self.name.startswith("async-collective-done")
        )


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        entry: Name of the computation that runs first.
        computations: Instructions of each, by name.
        head: First line, which holds what is donated.
    """

    entry: str
    computations: Mapping[str, Sequence[Instruction]]
    head: str

    @property
    def donated(self) -> int:
        """Results that take the place of an argument."""
        aliases = re.search(r"input_output_alias=\{ (.*?) \}, entry", self.head)
        return len(re.findall(r"\}: \(", aliases[1])) if aliases else 0


@dataclass(frozen=True)
class Execution:
    """An instruction as it runs.

    Attributes:
        instruction: Which.
        loops: How often each loop around it repeats, the outermost first.
        fused_into: Name of the computation it is part of, if that is a fusion's; None
            for what is launched by itself.
    """

    instruction: Instruction
    loops: tuple[int, ...]
    fused_into: str | None

    @property
    def times(self) -> int:
        """How often it runs in a call."""
        return math.prod(self.loops)


def parse(text: str) -> Module:
    """Reads a module.

    Args:
        text: As ``jax.stages.Compiled.as_text`` returns it.

    Returns:
        The module.

    Raises:
        ValueError: If there is no program in it.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = None
    lines: list[Instruction] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            lines = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
            continue
        named = _NAME.match(line)
        if named:
            lines.append(_instruction(named[1], line[named.end() :]))
    if entry is None:
        raise ValueError("expected the text of a compiled program, found no entry")
    return Module(entry, computations, head=text.split("\n", 1)[0])


def _instruction(name: str, text: str) -> Instruction:
    """Takes apart what follows the name: type, operation, operands and attributes."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == " " and depth == 0:
            operation, _, rest = text[at + 1 :].partition("(")
            return Instruction(name, text[:at], operation, "(" + rest)
    raise ValueError(f"expected an instruction, got {text[:80]!r}")


def _closed(text: str) -> str:
    """The beginning of a text up to the bracket that closes its first one."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return text[: at + 1]
    return text


def executions(module: Module, *, fused: bool = False) -> Iterator[Execution]:
    """Goes through all that runs, loops entered once.

    Args:
        module: The program.
        fused: Whether to look into fusions and asynchronous computations as well.

    Yields:
        Instructions with the loops around them.
    """
    yield from _run(module, module.entry, (), None, fused)


def _run(
    module: Module,
    computation: str,
    loops: tuple[int, ...],
    fused_into: str | None,
    fused: bool,
) -> Iterator[Execution]:
    for each in module.computations[computation]:
        yield Execution(each, loops, fused_into)
        if each.operation == "while":
            body = each.attribute("body")
            assert body is not None
            count = trip_count(module, each)
            yield from _run(module, body, (*loops, count), fused_into, fused)
        elif each.operation == "conditional":
            for branch in _branches(each):
                yield from _run(module, branch, loops, fused_into, fused)
        elif each.operation == "call":
            called = each.attribute("to_apply") or each.attribute("calls")
            assert called is not None
            yield from _run(module, called, loops, fused_into, fused)
        elif fused and each.operation in ("fusion", "async-start"):
            called = each.attribute("calls")
            assert called is not None
            yield from _run(module, called, loops, called, fused)


def _branches(conditional: Instruction) -> list[str]:
    several = re.search(r"branch_computations=\{(.*?)\}", conditional.rest)
    if several:
        return re.findall(r"%?([\w.\-]+)", several[1])
    both = (conditional.attribute(f"{name}_computation") for name in ("true", "false"))
    return [name for name in both if name is not None]


def trip_count(module: Module, loop: Instruction) -> int:
    """How often a loop repeats.

    XLA writes it down for CPUs and GPUs. For TPUs it is the constant that the loop's
    condition compares its counter with, which starts at 0 as those of ``lax.scan`` do.

    Args:
        module: The program.
        loop: A ``while`` of it.

    Returns:
        The count.

    Raises:
        ValueError: If it is not to be found: sums over the loop would be wrong.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest)
    if known:
        return int(known[1])
    condition = loop.attribute("condition")
    assert condition is not None
    instructions = module.computations[condition]
    bounds = {
        each.name: int(each.rest.strip("(").split(")")[0])
        for each in instructions
        if each.operation == "constant" and re.match(r"\(\d+\)", each.rest)
    }
    for each in instructions:
        if each.operation == "compare" and "direction=LT" in each.rest:
            counts = [bounds[name] for name in each.operands if name in bounds]
            if len(counts) == 1:
                return counts[0]
    raise ValueError(f"expected a loop that counts, got {loop.name} until {condition}")


def array_bytes(result: str) -> list[int]:
    """Bytes of each array of a type, without what layouts add.

    Example:
        >>> array_bytes("(f32[8,512]{1,0:T(8,128)}, bf16[4], s32[])")
        [16384, 8, 4]
    """
    return [
        _BYTES[kind] * math.prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in _ARRAY.findall(re.sub(r"\{[^{}]*\}", "", result))
    ]


def kernels(module: Module) -> int:
    """Kernels, copies and collectives that a call launches one after another."""
    return sum(each.times for each in executions(module) if each.instruction.launched)


def estimated_cycles(module: Module) -> int | None:
    """Cycles of a call by XLA's own estimates; None where it makes none.

    What runs beside something else, as copies and collectives do, is not in them.
    """
    total = 0
    for each in executions(module):
        found = re.search(r'"estimated_cycles":"(\d+)"', each.instruction.rest)
        total += each.times * int(found[1]) if found else 0
    return total or None
