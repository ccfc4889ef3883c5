"""Read XLA's HLO text: a computation as a planner's graph, and the groups that XLA's own passes made.

`parse_module` reads a module; `graph_of_computation` gives the graph of one of its computations, where what
is fused already is an opaque call. `groups_in` reads a module after fusion: for each computation, the groups
as sets of *digests*. A digest says what an operation computes, down to the computation's parameters, so that
an operation is found again under another name and in several groups. Only what the rules look at is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cleave.errors import ParseError
from cleave.fusion.graph import Graph, Shape, Vertex, array

OPCODES: Mapping[str, str] = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "maximum": "max", "minimum": "min",
    "exponential": "exp", "exponential-minus-one": "expm1", "log-plus-one": "log1p", "power": "pow",
    "negate": "neg", "cosine": "cos", "sine": "sin", "remainder": "rem", "round-nearest-afz": "round",
    "round-nearest-even": "round", "concatenate": "concat", "is-finite": "isnan", "shift-left": "shl",
    "shift-right-logical": "shr", "shift-right-arithmetic": "shr", "popcnt": "not", "tan": "sin",
    "bitcast-convert": "convert", "reduce-precision": "convert", "fusion": "custom-call",
    "rng-bit-generator": "custom-call", "copy-start": "custom-call", "copy-done": "custom-call",
}  # fmt: skip
"""XLA's opcodes that are called otherwise here."""
DTYPES: Mapping[str, str] = {
    "pred": "bool", "s8": "i8", "s16": "i16", "s32": "i32", "s64": "i64", "u8": "u8", "u16": "u16",
    "u32": "u32", "u64": "u64", "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64", "c64": "c64",
    "c128": "c128", "token": "bool", "s4": "i8", "u4": "u8",
}  # fmt: skip
PLAIN = frozenset({"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "broadcast", "iota"})
"""Operations that a comparison of groups does not look at: they cost nothing wherever they are."""

_HEAD = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_LINE = re.compile(r"(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.+)$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_COMMENT = re.compile(r"/\*.*?\*/")
_META = re.compile(r", (?:metadata|backend_config|frontend_attributes)=\{.*$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line: the operands by name, attributes as text, `literal` for what stands in brackets otherwise."""

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    literal: str
    line: str


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in order; `root` is the name of the last one's result."""

    name: str
    instructions: tuple[Instruction, ...]
    root: str

    def named(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}


@dataclass(frozen=True, slots=True)
class Module:
    """The computations of a module by name, and which one it starts with."""

    computations: Mapping[str, Computation]
    entry: str

    def planned(self) -> tuple[Computation, ...]:
        """Those that fusion passes work on: the entry, and what loops and branches call."""
        found = [self.computations[self.entry]]
        for computation in found:
            for i in computation.instructions:
                if i.opcode not in ("while", "conditional", "call"):
                    continue
                for key in ("condition", "body", "to_apply", "true_computation", "false_computation"):
                    other = self.computations.get(i.attributes.get(key, "").lstrip("%"))
                    if other is not None and other not in found:
                        found.append(other)
        return tuple(found)


def parse_module(text: str) -> Module:
    """A module from its text. `ParseError` if it is none."""
    computations: dict[str, Computation] = {}
    entry = ""
    current: list[Instruction] | None = None
    name = root = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if current is None:
            if found := _HEAD.match(line):
                current, name, root = [], found["name"], ""
                entry = name if found["entry"] else entry
        elif line == "}":
            computations[name] = Computation(name, tuple(current), root or current[-1].name)
            current = None
        elif found := _LINE.match(line):
            current.append(_instruction(found["name"], found["rest"], f"line {number}"))
            root = found["name"] if found["root"] else root
    if not entry:
        raise ParseError("this is no HLO module: it has no ENTRY computation")
    return Module(computations, entry)


def _instruction(name: str, rest: str, where: str) -> Instruction:
    source = re.search(r"source_line=(\d+)", rest)
    rest = _META.sub("", rest)
    shape_text, rest = _shape_text(rest, where)
    opcode, _, rest = rest.strip().partition("(")
    inside, rest = _bracketed(rest, where)
    operands: tuple[str, ...] = ()
    if opcode not in ("parameter", "constant", "iota"):
        operands = tuple(re.findall(r"%([\w.\-]+(?:#\d+)?)", inside))
    attributes = dict(re.findall(r"([\w-]+)=(\{[^{}]*(?:\{[^}]*\}[^{}]*)*\}|[^,\s]+)", rest))
    literal = inside if not operands else ""
    return Instruction(
        name, opcode, _shape(shape_text, where), operands, attributes, literal, source[1] if source else ""
    )


def _shape_text(rest: str, where: str) -> tuple[str, str]:
    if rest.startswith("("):
        inside, after = _bracketed(rest[1:], where)
        return f"({inside})", after
    head, _, after = rest.partition(" ")
    return head, after


def _bracketed(text: str, where: str) -> tuple[str, str]:
    """What stands before the bracket that closes, and after it."""
    depth = 1
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return text[:place], text[place + 1 :]
    raise ParseError("a bracket is not closed", where=where)


def _shape(text: str, where: str) -> Shape:
    parts: list[Shape] = []
    for dtype, dims, layout in _SHAPE.findall(text):
        sizes = [int(n) for n in dims.split(",") if n]
        order = [int(n) for n in layout.partition(":")[0].split(",") if n.strip().isdigit()]
        known = DTYPES.get(dtype, "i8" if dtype.startswith("f8") else "")
        if not known:
            raise ParseError(f"unknown element type {dtype!r}", where=where)
        parts.append(array(known, sizes, order if len(order) == len(sizes) else None))
    if text.startswith("("):
        return Shape("", parts=tuple(parts))
    if len(parts) != 1:
        raise ParseError(f"{text!r} is no shape", where=where)
    return parts[0]


# ---------------------------------------------------------------- graphs


def graph_of_computation(computation: Computation, ids: Mapping[str, int] | None = None) -> Graph:
    """The graph of a computation. Groups that are there already are opaque; several results meet in no
    vertex, one in a tuple does. `ids` are XLA's numbers of instructions, which a module's text does not
    carry."""
    root = computation.named()[computation.root]
    several = root.opcode == "tuple" and len(set(root.operands)) > 1
    made: dict[str, Vertex] = {}
    for i in computation.instructions:
        if not (several and i is root):
            for o in i.operands:
                if o not in made:
                    made[o] = _element(len(made), o, made)
            made[i.name] = _vertex(len(made), i, tuple(made[o] for o in i.operands))
    ends = dict.fromkeys(root.operands) if several else [root.name]
    for o in ends:
        if o not in made:
            made[o] = _element(len(made), o, made)
    numbers = {made[name].number: number for name, number in (ids or {}).items() if name in made}
    outputs = tuple(made[name] for name in ends)
    return Graph(computation.name, tuple(made.values()), outputs, made=numbers)


def _element(number: int, operand: str, made: Mapping[str, Vertex]) -> Vertex:
    """`NAME#K`: element K of a tuple, which newer dumps write where it is read."""
    name, _, place = operand.partition("#")
    whole = made[name]
    shape = whole.shape.parts[int(place)]
    return Vertex(number, operand, "get-tuple-element", (whole,), shape, value=int(place))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def _vertex(number: int, i: Instruction, operands: tuple[Vertex, ...]) -> Vertex:
    opcode = OPCODES.get(i.opcode, i.opcode)
    dims = _numbers(i.attributes.get("dimensions", ""))
    starts: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    value: float | None = None
    if opcode == "slice":
        ranges = [_numbers(r) for r in re.findall(r"\[([^\]]*)\]", i.attributes.get("slice", ""))]
        starts = tuple(r[0] for r in ranges)
        strides = tuple(r[2] if len(r) > 2 else 1 for r in ranges)
    elif opcode == "reduce-window":
        window = tuple(int(n) for n in re.findall(r"\d+", i.attributes.get("window", "").split(" ")[0]))
    elif opcode == "dot":
        axes = _numbers(i.attributes.get("lhs_contracting_dims", ""))
        window = tuple(operands[0].shape.dims[a] for a in axes) if operands else ()
    elif opcode == "constant" and re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", i.literal):
        value = float(i.literal)
    effect = i.attributes.get("custom_call_has_side_effect") == "true"
    return Vertex(
        number, i.name, opcode, operands, i.shape, dims, starts, strides, window, value, effect, line=i.line
    )


# ---------------------------------------------------------------- digests and groups

KEPT = (
    "dimensions", "slice", "dynamic_slice_sizes", "direction", "index", "iota_dimension", "padding", "window",
    "custom_call_target", "lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims",
    "offset_dims", "start_index_map", "slice_sizes", "is_stable",
)  # fmt: skip
"""Attributes that say what an operation computes."""


@dataclass(slots=True)
class _Digests:
    """Digests of a computation's values; `fused` lists what each group computes."""

    module: Module
    of: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    fused: dict[str, dict[str, Instruction]] = field(default_factory=dict[str, "dict[str, Instruction]"])

    def computation(
        self, computation: Computation, given: Sequence[str] | None = None
    ) -> dict[str, Instruction]:
        """Digest all values; returns the operations by digest, those of groups apart."""
        own: dict[str, Instruction] = {}
        for i in computation.instructions:
            if i.opcode == "parameter" and given is not None:
                self.of[i.name] = (given[int(i.literal)],)
                continue
            if i.opcode == "fusion" and i.attributes.get("kind") != "kCustom":
                self._group(i)
                continue
            if i.opcode == "tuple":
                self.of[i.name] = tuple(self._read(o) for o in i.operands)
                continue
            if i.opcode == "get-tuple-element":
                whole = self.of[i.operands[0]]
                if len(whole) > 1:
                    self.of[i.name] = (whole[int(i.attributes["index"])],)
                    continue
            digest = self._digest(i)
            self.of[i.name] = (digest,)
            own[digest] = i
        return own

    def _read(self, operand: str) -> str:
        """The digest of what an operand names: a value, or an element of a tuple."""
        name, _, place = operand.partition("#")
        found = self.of[name]
        if not place:
            return found[0] if len(found) == 1 else str(found)
        return f"{found[0]}#{place}" if len(found) == 1 else found[int(place)]

    def _group(self, i: Instruction) -> None:
        inner = _Digests(self.module)
        body = self.module.computations[i.attributes["calls"].lstrip("%")]
        self.fused[i.name] = inner.computation(body, [self._read(o) for o in i.operands])
        self.of[i.name] = inner.of[body.root]

    def _digest(self, i: Instruction) -> str:
        kept = [(key, i.attributes[key]) for key in KEPT if key in i.attributes]
        opcode, operands = i.opcode, [self._read(o) for o in i.operands]
        if i.opcode in ("while", "conditional", "call", "custom-call", "fusion"):
            kept.append(("calls", i.attributes.get("body", i.attributes.get("calls", ""))))
        shape = str(i.shape)
        if opcode in ("reduce", "reduce-window", "scatter", "sort", "map"):
            called = self.module.computations.get(i.attributes.get("to_apply", "").lstrip("%"))
            kept.append(("to_apply", " ".join(j.opcode for j in called.instructions) if called else ""))
        text = repr((opcode, shape, i.literal, kept, operands))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Found:
    """What XLA made of a computation: each group by name with the digests of its operations, plain ones left
    out, and the operations that stand alone."""

    groups: Mapping[str, frozenset[str]]
    alone: frozenset[str]


def digests_of(module: Module, computation: Computation) -> dict[str, str]:
    """The digest of each operation of a computation without groups, by name."""
    found = _Digests(module)
    found.computation(computation)
    return {name: digests[0] for name, digests in found.of.items() if len(digests) == 1}


def groups_in(module: Module) -> dict[str, Found]:
    """The groups of each computation that fusion passes work on."""
    result: dict[str, Found] = {}
    for computation in module.planned():
        digests = _Digests(module)
        own = digests.computation(computation)
        groups = {
            name: frozenset(d for d, i in inside.items() if i.opcode not in PLAIN)
            for name, inside in digests.fused.items()
        }
        alone = frozenset(d for d, i in own.items() if i.opcode not in PLAIN)
        result[computation.name] = Found({n: g for n, g in groups.items() if g}, alone)
    return result
