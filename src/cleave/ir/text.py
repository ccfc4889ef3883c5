"""The text form of programs and candidates: one operation a line, and what prints parses back.

`parse_program(print_program(p)) == p`: the same nodes, inputs in the same order, sizes and outputs; names
of nodes come back where `Program.names` gave valid and distinct ones, others are made up from the
operation. `parse_candidate(print_candidate(c)) == c` in the same way. Literals and sizes without a name
stand where they are used, with their dtype only if it is not the obvious one (`literal_dtype`).
The grammar is described by example in `parse`, which reads it back; what is called how, `names` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cleave.errors import Bug
from cleave.ir.candidate import Candidate, Element, Fold
from cleave.ir.dims import Atom, Extent, Gather, Index, Inject, Join, Term, Union, atoms_of
from cleave.ir.lexis import (
    dim_text,
    extent_text,
    group_text,
    index_names,
    number_text,
    quote,
    string_text,
    term_text,
)
from cleave.ir.loops import Loop, loop_of
from cleave.ir.names import Names, atoms_in, input_name, names_of
from cleave.ir.ops import (
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Position,
    Reduce,
    Scalar,
    Scan,
    SizeOf,
)
from cleave.ir.parse import literal_dtype, parse_program
from cleave.ir.parse_candidate import parse_candidate
from cleave.ir.program import Output, Program, sort_nodes

_WIDTH = 110


def print_program(program: Program) -> str:
    """The text of a program, ending in a newline; `Bug` if two inputs share a name."""
    return "\n".join(_program_lines(program, "program", frozenset())) + "\n"


def print_candidate(candidate: Candidate) -> str:
    """The text of a candidate, ending in a newline: the program, its Folds, conditions and derivation."""
    return "\n".join(["candidate {", *_indent(_candidate_lines(candidate)), "}"]) + "\n"


def printed(program: Program, taken: Iterable[str] = ()) -> tuple[Program, list[str]]:
    """The program with the names that its values have in print, and its lines; names that are made up are
    none of `taken`."""
    names = names_of(program, taken=taken)
    called = {n: t for n, t in names.nodes.items() if not isinstance(n.op, Input | Scalar)}
    return replace(program, names=called), _program_lines(program, "program", frozenset(), names)


# ---------------------------------------------------------------- programs


def _declared(program: Program) -> dict[Atom, None]:
    """The atoms that a program's header declares without saying so: those of its inputs and its sizes."""
    found = {a: None for n in program.inputs for dim in n.dims for a in atoms_of(dim)}
    return found | {atom: None for atom, _ in program.sizes}


def _program_lines(
    program: Program, word: str, outer: frozenset[Atom], names: Names | None = None
) -> list[str]:
    names = names or names_of(program)
    header = _header(program, word, _where(program, outer))
    body = _body_lines(program, names, outer)
    return [*header, *_indent([*body, *_returns(program, names)]), "}"]


def _body_lines(program: Program, names: Names, outer: frozenset[Atom]) -> list[str]:
    """A line for each node, and before the first result of a loop the loop."""
    lines: list[str] = []
    written: set[Loop] = set()
    for node in program.nodes:
        if isinstance(node.op, Input | Scalar) or node in names.inline:
            continue
        if isinstance(node.op, Scan) and (loop := loop_of(node.op)) not in written:
            written.add(loop)
            lines += _loop_lines(loop, names, outer | frozenset([*_declared(program), *program.dims]))
        lines.append(_statement(node, names))
    return lines


def _loop_lines(loop: Loop, names: Names, outer: frozenset[Atom]) -> list[str]:
    """A loop: what its body's inputs are, states first, and the body."""
    (step,) = index_names([loop.over], names.taken)
    texts: list[str] = []
    for number, (node, access) in enumerate(zip(loop.body.inputs, loop.args, strict=True)):
        called = dict(zip(node.axes, index_names(node.dims, names.taken | {step}), strict=True))
        axes = f"[{_declare(called, called)}]" if called else ""
        read = _argument(access, names, {**called, loop.time(number): step}, node.dtype)
        texts.append(f"{quote(input_name(node))}{axes} = {read}")
    parts = [", ".join(texts[: loop.states]), ", ".join(texts[loop.states :])]
    start = f"scan {names.loops[loop]}[{step}: {dim_text(loop.over)}]("
    lines = [f"{start}{'; '.join(parts).rstrip()})"]
    if len(lines[0]) > _WIDTH - 2:
        held = [f"{text}," for text in texts]
        if loop.states:
            held[loop.states - 1] = f"{held[loop.states - 1][:-1]};"
        else:
            held.insert(0, ";")
        lines = [start, *_indent(held), ")"]
    return [*lines, *_program_lines(loop.body, "body", outer)]


def _header(program: Program, word: str, where: str) -> list[str]:
    inputs = [_input_text(node) for node in program.inputs]
    start = f"{word} {quote(program.name)}("
    line = f"{start}{', '.join(inputs)}){where} {{"
    if len(line) <= _WIDTH:
        return [line]
    return [start, *_indent([f"{text}," for text in inputs]), f"){where} {{"]


def _input_text(node: Node) -> str:
    name = quote(input_name(node))
    if isinstance(node.op, Input):
        return f"{name}: {node.dtype}[{', '.join(map(group_text, node.op.layout))}]"
    return f"{name}: scalar {node.dtype}"


def _where(program: Program, outer: frozenset[Atom]) -> str:
    """Sizes that are known or derived, then the names of atoms that nothing else declares."""
    items: list[str] = []
    for atom, value in program.sizes:
        if isinstance(value, Extent):
            text = extent_text(value) if value.terms else f"extent({value.const})"
        else:
            text = str(int(value))
        items.append(f"{quote(atom.name)} = {text}")
    used = [*program.dims, *(a for node in program.nodes for a in atoms_in(node))]
    known = {**_declared(program), **dict.fromkeys(outer)}
    items += [quote(a.name) for a in dict.fromkeys(used) if a not in known]
    return f" where {', '.join(items)}" if items else ""


def _returns(program: Program, names: Names) -> list[str]:
    texts = [_output_text(output, names) for output in program.outputs]
    line = f"return {', '.join(texts)}".rstrip()
    if len(line) <= _WIDTH:
        return [line]
    return ["return", *_indent([f"{text}," for text in texts[:-1]] + texts[-1:])]


def _output_text(output: Output, names: Names) -> str:
    node = output.node
    # An input has no line that names its axes.
    plain = index_names(node.dims, ()) if isinstance(node.op, Input) else ()
    called = plain or tuple(names.indices(node).values())
    name, shown = names.nodes[output.node], names.texts[output.node]
    groups = ["*".join(called[number] for number in group) or "1" for group in output.layout]
    where = f"[{', '.join(groups)}]" if groups else ""
    return f"{shown}{where}" if output.name == name else f"{quote(output.name)}: {shown}{where}"


def _statement(node: Node, names: Names) -> str:
    called = names.indices(node)
    axes = f"[{_declare(node.axes, called)}]" if node.axes else ""
    return f"{names.texts[node]}{axes}: {node.dtype} = {_operation(node, names, called)}"


def _declare(indices: Iterable[Index], called: Mapping[Index, str]) -> str:
    return ", ".join(f"{called[i]}: {dim_text(i.dim)}" for i in indices)


def _operation(node: Node, names: Names, called: dict[Index, str]) -> str:
    match node.op:
        case Const(value):
            return number_text(value)
        case SizeOf(dim):
            return f"size({dim_text(dim)})"
        case Position(value):
            return f"index({term_text(value, called, names.texts)})"
        case Map(fn, args):
            dtypes = [None if a.node in names.inline else a.node.dtype for a in args]
            obvious = literal_dtype(fn, node.dtype, dtypes)
            return f"{fn}({', '.join(_argument(a, names, called, obvious) for a in args)})"
        case Reduce(kind, bound, arg):
            return f"{kind}[{_declare(bound, called)}]({_argument(arg, names, called, node.dtype)})"
        case Contract(bound, args):
            inner = ", ".join(_argument(a, names, called, node.dtype) for a in args)
            return f"contract[{_declare(bound, called)}]({inner})"
        case Cat(axis, pieces):
            return _cat(node, axis, pieces, names, called)
        case Scan(body=body, result=result):
            return f"scan({names.loops[loop_of(node.op)]}, {quote(body.outputs[result].name)})"
        case Input() | Scalar():
            raise Bug(f"input {input_name(node)} among the statements")


def _cat(node: Node, axis: int, pieces: Sequence[Access], names: Names, called: dict[Index, str]) -> str:
    dim = node.axes[axis].dim
    assert isinstance(dim, Union)
    parts = dim.parts[: len(pieces)]
    inner = index_names(parts, names.taken | set(called.values()))
    own = [Index(part, axis) for part in parts]
    shared = {**called, **dict(zip(own, inner, strict=True))}
    texts = [
        _argument(piece, names, {**shared, own[number]: inner[number]}, node.dtype)
        for number, piece in enumerate(pieces)
    ]
    return f"cat[{called[node.axes[axis]]} = {' | '.join(inner)}]({', '.join(texts)})"


def _argument(access: Access, names: Names, called: Mapping[Index, str], obvious: str) -> str:
    node = access.node
    if node not in names.inline:
        return _access(access, names, called)
    text = number_text(node.op.value) if isinstance(node.op, Const) else ""
    if isinstance(node.op, SizeOf):
        text = f"size({dim_text(node.op.dim)})"
    return text if node.dtype == obvious else f"{text}:{node.dtype}"


def _access(access: Access, names: Names, called: Mapping[Index, str]) -> str:
    for index in sorted(access.indices - called.keys(), key=str):
        raise Bug(f"{names.nodes[access.node]} is read at index {index}, which has no axis here")
    terms = ", ".join(term_text(t, called, names.texts) for t in access.terms)
    name = names.texts[access.node]
    return f"{name}[{terms}]" if terms else name


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


# ---------------------------------------------------------------- candidates


def _candidate_lines(candidate: Candidate) -> list[str]:
    program = candidate.program
    extra = _extra_nodes(candidate)
    names = names_of(program, extra)
    outer = frozenset([*_declared(program), *program.dims])
    lines = [f"form {string_text(candidate.form)}"]
    if candidate.reassociated:
        lines.append("reassociated")
    if candidate.splits:
        lines.append(f"splits {', '.join(map(dim_text, candidate.splits))}")
    lines += [f"cost {string_text(name)} {string_text(value)}" for name, value in candidate.cost]
    lines += _program_lines(_with_names(program, names), "program", frozenset())
    if extra:
        inside = set(program.nodes)
        new = [n for n in sort_nodes(extra) if n not in inside and n not in names.inline]
        body = [_statement(n, names) for n in new if not isinstance(n.op, Input | Scalar)]
        lines += ["define {", *_indent(body), "}"] if body else []
    for fold in candidate.folds:
        lines += _fold_lines(fold, names, outer)
    if candidate.split_form is not None:
        lines += _program_lines(candidate.split_form, "split_form", outer)
    for step in candidate.derivation:
        lines.append(f"step {string_text(step.law)} at {string_text(step.place)}")
        lines += _indent([f"given {string_text(step.given)}"] if step.given else [])
        lines += _indent([f"from {string_text(step.before)}", f"to {string_text(step.after)}"])
    for condition in candidate.conditions:
        verdict = "holds" if condition.holds else "fails"
        texts = (condition.kind, condition.subject, condition.bound)
        lines.append(f"condition {' '.join(map(string_text, texts))} {verdict} {string_text(condition.why)}")
    return lines


def _with_names(program: Program, names: Names) -> Program:
    """The program under the names that its Folds use for its nodes."""
    return Program(program.name, program.inputs, program.outputs, program.sizes, dict(names.nodes))


def _extra_nodes(candidate: Candidate) -> list[Node]:
    """Nodes that Folds refer to and that have no line in the candidate's program."""
    roots: dict[Node, None] = {}
    for fold in candidate.folds:
        accesses = [*(e.access for e in fold.elements), *([fold.support] if fold.support else [])]
        roots.update(dict.fromkeys(v.node for v in fold.values))
        roots.update(dict.fromkeys(a.node for a in accesses))
        roots.update(dict.fromkeys(n for a in accesses for n in _gathered(a.terms)))
    inside = {*candidate.program.inputs, *candidate.program.nodes}
    plain = (Const, SizeOf)
    return [node for node in roots if node not in inside or isinstance(node.op, plain)]


def _gathered(terms: Iterable[Term]) -> list[Node]:
    found: list[Node] = []
    for value in terms:
        for leaf, _ in value.leaves:
            match leaf:
                case Gather(access):
                    found += [access.node, *_gathered(access.terms)]
                case Inject(_, inner):
                    found += _gathered([inner])
                case Join(part, within):
                    found += _gathered([part, within])
                case _:
                    pass
    return found


def _fold_lines(fold: Fold, names: Names, outer: frozenset[Atom]) -> list[str]:
    lines = [f"value {quote(v.name)} = {names.texts[v.node]}" for v in fold.values]
    lines += [f"element {_element_text(e, fold, names)}" for e in fold.elements]
    if fold.support is not None or fold.support_of:
        lines.append(f"support {_support_text(fold, names)}".rstrip())
    if fold.reason:
        lines.append(f"reason {string_text(fold.reason)}")
    for word in ("init", "step", "merge", "finish"):
        lines += _program_lines(getattr(fold, word), word, outer)
    return [f"fold over {dim_text(fold.over)} {{", *_indent(lines), "}"]


def _element_axes(fold_step: Program, name: str) -> tuple[Index, ...]:
    """The axes of an element: those of the input of `step` with its name (none if there is no such input)."""
    for node in fold_step.inputs:
        if input_name(node) == name:
            return node.axes
    return ()


def _element_text(element: Element, fold: Fold, names: Names) -> str:
    called = _element_indices(element.name, fold, names)
    axes = f"[{_declare(called, called)}]" if called else ""
    return f"{quote(element.name)}{axes} = {_access(element.access, names, called)}"


def _element_indices(name: str, fold: Fold, names: Names) -> dict[Index, str]:
    axes = _element_axes(fold.step, name)
    return dict(zip(axes, index_names((i.dim for i in axes), names.taken), strict=True))


def _support_text(fold: Fold, names: Names) -> str:
    called = _element_indices(fold.support_of, fold, names)
    of = f"of {quote(fold.support_of)}"
    if fold.support is None:
        return of
    axes = f"[{_declare(called, called)}]" if called else ""
    return f"{of}{axes} = {_access(fold.support, names, called)}"


__all__ = ["parse_candidate", "parse_program", "print_candidate", "print_program"]
