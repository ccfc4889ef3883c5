"""Text of graphs: one vertex a line, types inferred where they can be (docs/fusion.md has the grammar).

    p: f32[16,16] = parameter
    a = add(p, p)
    s = slice(a), at={0:8, 0:16:2}
    group g L = {a, s}
    ret s

`parse_graph` raises `ParseError` with the line, `print_graph` prints what parses back to an equal graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cleave.errors import ParseError
from cleave.fusion.graph import WIDTHS, Formed, Graph, Shape, Vertex, array, sorted_by_need
from cleave.fusion.opcodes import KNOWN, POINTWISE

COMPARES = frozenset({"compare", "lt", "le", "gt", "ge", "eq", "ne"})
_LINE = re.compile(r"(?P<name>[\w.]+)\s*(?::\s*(?P<type>[^=]+?))?\s*=\s*(?P<op>[\w-]+)\s*(?P<rest>.*)$")
_GROUP = re.compile(
    r"group\s+(?P<name>[\w.]+)\s+(?P<kind>[LI])\s*=\s*\{(?P<members>[^}=]*)(=>(?P<outs>[^}]*))?\}$"
)
_ATTR = re.compile(r"\s*([\w-]+)(?:=(\{[^}]*\}|[^\s,]+))?\s*(?:,|$)")
_TYPE = re.compile(r"(\w+)\[([\d,\s]*)\](?:\{([\d,\s]*)\})?$")


@dataclass(slots=True)
class _Draft:
    """A line that is read but not yet resolved."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    attrs: dict[str, str]
    where: str


@dataclass(slots=True)
class _Text:
    drafts: dict[str, _Draft] = field(default_factory=dict[str, _Draft])
    groups: list[tuple[re.Match[str], str]] = field(default_factory=list[tuple[re.Match[str], str]])
    outputs: list[str] = field(default_factory=list[str])
    carried: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    bodies: dict[str, Graph] = field(default_factory=dict[str, Graph])


def parse_type(text: str, where: str = "") -> Shape:
    """`f32[16,16]{0,1}` or a tuple of types in parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        parts = re.findall(r"\w+\[[\d,\s]*\](?:\{[\d,\s]*\})?", text)
        return Shape("", parts=tuple(parse_type(p, where) for p in parts))
    found = _TYPE.fullmatch(text)
    if found is None or found[1] not in WIDTHS:
        raise ParseError(f"{text!r} is not a type", where=where, hint="dtype[dims], such as f32[16,16]")
    dims = _numbers(found[2])
    order = _numbers(found[3]) if found[3] is not None else None
    if order is not None and sorted(order) != list(range(len(dims))):
        raise ParseError(f"{text!r} does not order its axes", where=where, hint="minor to major, each once")
    return array(found[1], dims, order)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.replace("{", "").replace("}", "").split(",") if n.strip())


def parse_graph(text: str, name: str = "graph") -> Graph:
    """The graph of a text. `ParseError` for what is not one; `Invalid` for a cycle or a name given twice."""
    lines = [(n, raw.split("#")[0].strip()) for n, raw in enumerate(text.splitlines(), 1)]
    rest = [(n, line) for n, line in lines if line]
    graph = _parse(rest, name, nested=False)
    if rest:
        raise ParseError(f"{rest[0][1]!r} is not expected here", where=f"line {rest[0][0]}")
    return graph


def _parse(lines: list[tuple[int, str]], name: str, nested: bool) -> Graph:
    read = _Text()
    while lines:
        number, line = lines.pop(0)
        if line == "}" and nested:
            break
        _read_line(read, line, f"line {number}: {line}", lines)
    return _build(read, name)


def _read_line(read: _Text, line: str, where: str, lines: list[tuple[int, str]]) -> None:
    if found := re.fullmatch(r"body\s+([\w.]+)\s*\{", line):
        read.bodies[found[1]] = _parse(lines, found[1], nested=True)
    elif line.startswith("ret ") or line == "ret":
        read.outputs += [n.strip() for n in line[3:].split(",") if n.strip()]
    elif found := re.fullmatch(r"carry\s+([\w.]+)\s*<-\s*([\w.]+)", line):
        read.carried.append((found[1], found[2]))
    elif found := _GROUP.fullmatch(line):
        read.groups.append((found, where))
    elif found := _LINE.fullmatch(line):
        draft = _draft(found, where)
        if draft.name in read.drafts:
            raise ParseError(f"{draft.name} is defined twice", where=where)
        read.drafts[draft.name] = draft
    else:
        raise ParseError(
            "this is no line of a graph", where=where, hint="name: type = opcode(operands), attr=value"
        )


def _draft(found: re.Match[str], where: str) -> _Draft:
    rest = found["rest"].strip()
    operands: list[str] = []
    if rest.startswith("("):
        inside, closed, rest = rest[1:].partition(")")
        if not closed:
            raise ParseError("a parenthesis is not closed", where=where)
        operands = [o.strip() for o in inside.split(",") if o.strip()]
    rest = rest.strip().removeprefix(",")
    attrs: dict[str, str] = {}
    while rest.strip():
        attr = _ATTR.match(rest)
        if attr is None:
            raise ParseError(
                f"{rest.strip()!r} is no attribute", where=where, hint="name=value or name={1,2}"
            )
        attrs[attr[1]] = attr[2] or ""
        rest = rest[attr.end() :]
    return _Draft(found["name"], found["type"] or "", found["op"], operands, attrs, where)


def _build(read: _Text, name: str) -> Graph:
    wanted = {d.name: d.operands for d in read.drafts.values()}
    for draft in read.drafts.values():
        for operand in draft.operands:
            if operand not in wanted:
                raise ParseError(f"{draft.name} reads {operand}, which is not defined", where=draft.where)
    built: dict[str, Vertex] = {}
    for label in sorted_by_need(wanted, wanted, f"graph {name}"):
        built[label] = _vertex(read, read.drafts[label], built)
    for label in [*read.outputs, *(n for pair in read.carried for n in pair)]:
        if label not in built:
            raise ParseError(f"{label} is not defined", where=f"results of graph {name}")
    order = sorted(built.values(), key=lambda v: v.number)
    users = {v.name: [u for u in order if v in u.operands] for v in order} if read.groups else {}
    formed = tuple(_formed(g, where, built, users, read.outputs) for g, where in read.groups)
    carried = tuple((built[a], built[b]) for a, b in read.carried)
    return Graph(name, tuple(order), tuple(built[o] for o in read.outputs), formed, carried)


def _formed(
    found: re.Match[str],
    where: str,
    built: dict[str, Vertex],
    users: Mapping[str, list[Vertex]],
    outs: list[str],
) -> Formed:
    names = [n.strip() for n in found["members"].split(",") if n.strip()]
    outputs = [n.strip() for n in (found["outs"] or "").split(",") if n.strip()]
    for n in [*names, *outputs]:
        if n not in built:
            raise ParseError(f"{n} is not defined", where=where)
    members = [built[n] for n in names]
    if not outputs:
        inner = set(members)
        seen = [m for m in members if m.name in outs or any(u not in inner for u in users[m.name])]
        outputs = [m.name for m in (seen or members[-1:])]
    return Formed(found["name"], found["kind"], tuple(members), tuple(built[n] for n in outputs))


KEYS = {"dims", "at", "starts", "strides", "window", "value", "effect", "trips", "body", "view", "src"}


def _vertex(read: _Text, draft: _Draft, built: Mapping[str, Vertex]) -> Vertex:
    unknown = [k for k in draft.attrs if k not in KEYS]
    if unknown:
        raise ParseError(f"unknown attribute {unknown[0]!r}", where=draft.where, hint=", ".join(sorted(KEYS)))
    operands = tuple(built[o] for o in draft.operands)
    attrs = _attributes(read, draft)
    slices = _slices(draft)
    if slices:
        attrs["starts"] = tuple(s for s, _, _ in slices)
        attrs["strides"] = tuple(k for _, _, k in slices)
    shape = parse_type(draft.type, draft.where) if draft.type else _inferred(draft, operands, attrs, slices)
    made = Vertex(len(built), draft.name, draft.opcode, operands, shape, **attrs)
    _check(made, draft.where)
    return made


def _attributes(read: _Text, draft: _Draft) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        for key in ("dims", "starts", "strides", "window"):
            if key in draft.attrs:
                found[key] = _numbers(draft.attrs[key])
        if "value" in draft.attrs:
            text = draft.attrs["value"]
            found["value"] = int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if "trips" in draft.attrs:
            found["trips"] = int(draft.attrs["trips"])
    except ValueError as error:
        raise ParseError(str(error), where=draft.where) from error
    found["effect"] = "effect" in draft.attrs
    found["view"] = "view" in draft.attrs
    if "src" in draft.attrs:
        found["line"] = draft.attrs["src"]
    if "body" in draft.attrs:
        body = read.bodies.get(draft.attrs["body"])
        if body is None:
            raise ParseError(f"there is no body {draft.attrs['body']!r} before this line", where=draft.where)
        found["body"] = body
    return found


def _slices(draft: _Draft) -> list[tuple[int, int, int]]:
    text = draft.attrs.get("at", "").strip("{}")
    found: list[tuple[int, int, int]] = []
    for part in text.split(",") if text else ():
        numbers = [int(n) for n in part.split(":")]
        if len(numbers) not in (2, 3):
            raise ParseError(
                f"{part!r} is no slice", where=draft.where, hint="start:limit or start:limit:stride"
            )
        found.append((numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 1))
    return found


def _inferred(
    draft: _Draft, operands: Sequence[Vertex], attrs: Mapping[str, Any], slices: list[tuple[int, int, int]]
) -> Shape:
    op, first = draft.opcode, operands[0].shape if operands else None
    dims = attrs.get("dims", ())
    if op == "constant":
        return array("f32")
    if first is not None:
        if op in COMPARES:
            return replace(first, dtype="bool")
        if op == "select" and len(operands) == 3:
            return operands[1].shape
        if (op in POINTWISE and op != "convert") or op in ("reverse", "dynamic-update-slice", "scatter"):
            return first
        if op == "reduce":
            return array(first.dtype, [d for n, d in enumerate(first.dims) if n not in dims])
        if op == "transpose":
            return array(first.dtype, [first.dims[a] for a in dims])
        if op == "slice" and slices:
            return array(first.dtype, [-(-(limit - s) // k) for s, limit, k in slices])
        if op == "concat":
            axis = dims[0]
            total = sum(o.shape.dims[axis] for o in operands)
            return array(first.dtype, [total if n == axis else d for n, d in enumerate(first.dims)])
        if op == "get-tuple-element" and first.parts:
            return first.parts[int(attrs.get("value") or 0)]
    raise ParseError(
        f"the type of {draft.name} does not follow from {op}", where=draft.where, hint="name: type = ..."
    )


def _check(v: Vertex, where: str) -> None:
    """`ParseError` for shapes that would make the rules meaningless."""
    if v.opcode in POINTWISE and any(
        o.shape.dims != v.shape.dims
        for o in v.operands
        if not (v.opcode in ("select", "clamp") and not o.shape.dims)
    ):
        dims = ", ".join(str(o.shape) for o in v.operands)
        raise ParseError(
            f"{v.opcode} of {dims} gives no {v.shape}",
            where=where,
            hint="broadcast the smaller operand first",
        )
    axes = v.operands[0].shape.dims if v.operands and v.opcode in ("reduce", "transpose", "reverse") else None
    if axes is not None and any(not 0 <= d < len(axes) for d in v.dims):
        raise ParseError(f"{v.opcode} over axes {v.dims} of {v.operands[0].shape}", where=where)
    if v.opcode == "transpose" and axes is not None and sorted(v.dims) != list(range(len(axes))):
        raise ParseError(f"{v.dims} is no permutation of {len(axes)} axes", where=where)


def unknown_in(graph: Graph) -> tuple[Vertex, ...]:
    """Vertices whose operation no rule knows: they are left alone."""
    return tuple(v for v in graph.vertices if v.opcode not in KNOWN)


# ---------------------------------------------------------------- printing


def print_graph(graph: Graph, indent: str = "") -> str:
    """The text of a graph."""
    lines: list[str] = []
    for v in graph.vertices:
        if v.body is not None:
            lines += [f"body {v.body.name} {{", print_graph(v.body, indent + "  ").rstrip("\n"), "}"]
        lines.append(f"{v.name}: {v.shape} = {v.opcode}{_operands(v)}{_attrs(v)}")
    for f in graph.formed:
        members = ", ".join(m.name for m in f.members)
        lines.append(f"group {f.name} {f.kind} = {{{members} => {', '.join(o.name for o in f.outputs)}}}")
    lines += [f"carry {a.name} <- {b.name}" for a, b in graph.carried]
    lines.append(f"ret {', '.join(o.name for o in graph.outputs)}".rstrip())
    return "\n".join(line if line.startswith(indent) and indent else indent + line for line in lines) + "\n"


def _operands(v: Vertex) -> str:
    return f"({', '.join(o.name for o in v.operands)})" if v.operands else ""


def _attrs(v: Vertex) -> str:
    parts = [
        f"{key}={{{','.join(map(str, value))}}}"
        for key, value in (
            ("dims", v.dims),
            ("starts", v.starts),
            ("strides", v.strides),
            ("window", v.window),
        )
        if value
    ]
    if isinstance(v.value, int | float):
        parts.append(f"value={v.value}")
    if v.trips is not None:
        parts.append(f"trips={v.trips}")
    if v.body is not None:
        parts.append(f"body={v.body.name}")
    parts += [word for word, there in (("effect", v.effect), ("view", v.view)) if there]
    return "".join(f", {p}" for p in parts)
