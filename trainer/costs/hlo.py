"""Parses a compiled program: its instructions, and the loops around each of them.

The text is that of an XLA module after all passes, for CPUs, GPUs and TPUs. It shows
what runs: loops with their numbers of turns, fusions and collectives.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Operations without a kernel: they only name, group or start others.
_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
        *("while", "call", "conditional", "after-all", "partition-id"),
    }
)
# Bytes of an element, by XLA's name of its type.
_BYTES = {
    "pred": 1,
    "token": 0,
    "bf16": 2,
    **{f"{kind}{bits}": bits // 8 for kind in "usf" for bits in (8, 16, 32, 64)},
    "c64": 8,
    "c128": 16,
}
# The first line of a computation, the name of an instruction, and the type of an array.
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_NAME = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
        name: Name within the module.
        result: Type of the result, such as ``f32[8,512]{1,0}``, or a tuple of types.
        operation: Name of the operation, such as ``fusion``.
        rest: Text of operands and attributes.
    """

    name: str
    result: str
    operation: str
    rest: str

    def find_attribute(self, name: str) -> str | None:
        """Finds the computation or number that an attribute names; None without it."""
        attribute = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return attribute[1] if attribute else None

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results it reads."""
        return re.findall(r"%([\w.\-]+)", _take_brackets(self.rest))

    @property
    def launched(self) -> bool:
        """Whether it launches a kernel, a copy or a collective."""
        # A `-done` only waits for what its `-start` has launched, and TPUs reserve
        # memory by a custom call.
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
        computations: Instructions of each computation, by its name.
        head: First line of the text, which lists the donated arguments.
    """

    entry: str
    computations: Mapping[str, Sequence[Instruction]]
    head: str

    @property
    def donated(self) -> int:
        """Number of results that take the place of an argument."""
        aliases = re.search(r"input_output_alias=\{ (.*?) \}, entry", self.head)
        return len(re.findall(r"\}: \(", aliases[1])) if aliases else 0


@dataclass(frozen=True)
class Execution:
    """An instruction, with the loops in which it runs.

    Attributes:
        instruction: The instruction.
        loops: Number of turns of each loop around it, the outermost first.
        fused_into: Name of the fusion's computation that it is part of; None if it is
            launched by itself.
    """

    instruction: Instruction
    loops: tuple[int, ...]
    fused_into: str | None

    @property
    def times(self) -> int:
        """Number of times that it runs in a call."""
        return math.prod(self.loops)


def parse_module(text: str) -> Module:
    """Parses the text of a module.

    Args:
        text: Text that ``jax.stages.Compiled.as_text`` returns.

    Returns:
        The module.

    Raises:
        ValueError: If the text holds no program.
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
            lines.append(_parse_instruction(named[1], line[named.end() :]))
    if entry is None:
        raise ValueError(
            f"{text[:80]!r}: expected the text of a compiled program, found no entry"
        )
    return Module(entry, computations, head=text.split("\n", 1)[0])


def _parse_instruction(name: str, text: str) -> Instruction:
    """Parses the text after an instruction's name: type, operation and operands."""
    # The type ends at the first space outside of all brackets: tuples have some inside.
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == " " and depth == 0:
            operation, _, rest = text[at + 1 :].partition("(")
            return Instruction(name, text[:at], operation, "(" + rest)
    raise ValueError(f"expected an instruction, got {text[:80]!r}")


def _take_brackets(text: str) -> str:
    """Takes the beginning of a text up to the bracket that closes its first one."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return text[: at + 1]
    return text


def walk_executions(module: Module, *, fused: bool = False) -> Iterator[Execution]:
    """Walks through the instructions in the order in which they run.

    The body of a loop is walked through once.

    Args:
        module: The program.
        fused: Whether to walk through fusions and asynchronous computations as well.

    Yields:
        Instructions with the loops around them.
    """
    yield from _walk(module, module.entry, (), None, fused)


def _walk(
    module: Module,
    computation: str,
    loops: tuple[int, ...],
    fused_into: str | None,
    fused: bool,
) -> Iterator[Execution]:
    """Walks through one computation; parameters as in ``Execution``."""
    for instruction in module.computations[computation]:
        yield Execution(instruction, loops, fused_into)
        if instruction.operation == "while":
            body = instruction.find_attribute("body")
            assert body is not None
            count = read_trip_count(module, instruction)
            yield from _walk(module, body, (*loops, count), fused_into, fused)
        elif instruction.operation == "conditional":
            # All branches are counted, as if each of them ran: an upper bound.
            for branch in _list_branches(instruction):
                yield from _walk(module, branch, loops, fused_into, fused)
        elif instruction.operation == "call":
            called = instruction.find_attribute(
                "to_apply"
            ) or instruction.find_attribute("calls")
            assert called is not None
            yield from _walk(module, called, loops, fused_into, fused)
        elif fused and instruction.operation in ("fusion", "async-start"):
            called = instruction.find_attribute("calls")
            assert called is not None
            yield from _walk(module, called, loops, called, fused)


def _list_branches(conditional: Instruction) -> list[str]:
    """Lists the computations of a conditional, which XLA writes in two ways."""
    listed = re.search(r"branch_computations=\{(.*?)\}", conditional.rest)
    if listed:
        return re.findall(r"%?([\w.\-]+)", listed[1])
    both = (
        conditional.find_attribute(f"{name}_computation") for name in ("true", "false")
    )
    return [name for name in both if name is not None]


def read_trip_count(module: Module, loop: Instruction) -> int:
    """Reads the number of turns of a loop.

    XLA writes this number into the text for CPUs and GPUs. For TPUs, it is the constant
    that the loop's condition compares the counter with; loops of ``lax.scan`` count
    from 0.

    Args:
        module: The program.
        loop: Instruction ``while`` of the program.

    Returns:
        The number of turns.

    Raises:
        ValueError: If the number cannot be read; all sums over the loop would be wrong.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest)
    if known:
        return int(known[1])
    condition = loop.find_attribute("condition")
    assert condition is not None
    instructions = module.computations[condition]
    constants = {
        instruction.name: int(instruction.rest.strip("(").split(")")[0])
        for instruction in instructions
        if instruction.operation == "constant"
        and re.match(r"\(\d+\)", instruction.rest)
    }
    # A loop that ends by anything else than this comparison has no number to be read.
    for instruction in instructions:
        if instruction.operation == "compare" and "direction=LT" in instruction.rest:
            operands = instruction.operands
            counts = [constants[name] for name in operands if name in constants]
            if len(counts) == 1:
                return counts[0]
    raise ValueError(f"expected a loop that counts, got {loop.name} until {condition}")


def array_bytes(result: str) -> list[int]:
    """Computes the bytes of each array of a type, without the padding of layouts.

    Example:
        >>> array_bytes("(f32[8,512]{1,0:T(8,128)}, bf16[4], s32[])")
        [16384, 8, 4]
    """
    # Layouts are removed first: their tiles, such as T(8,128), would look like shapes.
    return [
        _BYTES[kind] * math.prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in _ARRAY.findall(re.sub(r"\{[^{}]*\}", "", result))
    ]


def count_kernels(module: Module) -> int:
    """Counts the kernels, copies and collectives that a call launches."""
    return sum(
        execution.times
        for execution in walk_executions(module)
        if execution.instruction.launched
    )


def sum_estimated_cycles(module: Module) -> int | None:
    """Sums XLA's own estimates of the cycles of a call; None if it makes none.

    Copies and collectives that run beside kernels are not in the estimates.
    """
    total = 0
    for execution in walk_executions(module):
        text = execution.instruction.rest
        cycles = re.search(r'"estimated_cycles":"(\d+)"', text)
        total += execution.times * int(cycles[1]) if cycles else 0
    return total or None
