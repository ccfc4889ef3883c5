"""From a recording to steps: which sizes are static, where PyTorch calls cut, what each program takes.

Programs and PyTorch calls alternate by *level*: level 0 needs no PyTorch call, level n what the calls of
level n - 1 gave. A value of a lower level that a program needs is handed over, unless it depends on no
argument.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from cleave.errors import Invalid
from cleave.frontend.axes import leaf_vars, leaves_of
from cleave.frontend.build import Builder, Names, below, copy_of
from cleave.frontend.captured import (
    Argument,
    Captured,
    Computed,
    Copied,
    EagerStep,
    Named,
    Outside,
    ProgramStep,
    Shape,
    Step,
    Symbols,
)
from cleave.frontend.outside import PLAIN
from cleave.frontend.recorded import Poison, Retry, Whole
from cleave.frontend.trace import Tracer
from cleave.frontend.values import Pre, Value, whole
from cleave.ir.dims import Atom, Dim, atoms_of
from cleave.ir.ops import Access, Contract, Input, Map, Node
from cleave.ir.program import Program
from cleave.ir.sizes import infer_sizes

KEPT = (
    *PLAIN, torch.layout, torch.memory_format, torch.Size, enum.Enum, type, slice,
    torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
"""What a result may hold beside tensors: values that are the same at every call, or follow from sizes."""


class Planner:
    """Cuts one recording. With `computed`, results that are inputs as they came are programs' outputs too."""

    def __init__(
        self,
        tracer: Tracer,
        label: str,
        arguments: tuple[Argument, ...],
        outside: tuple[Outside, ...],
        *,
        computed: bool = False,
    ) -> None:
        self.t, self.label, self.arguments, self.outside = tracer, label, arguments, outside
        self.computed = computed
        self.names: dict[Pre, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.closed: dict[Pre, bool] = {}
        self.used_names: dict[str, None] = {}
        for item in tracer.tensors:
            self._call(item.node, item.name)
            self.shapes[item.name] = tuple(item.fake.shape)
        for number in tracer.numbers.values():
            self._call(number.node, number.name)

    def _call(self, pre: Pre, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.used_names:
            number += 1
            name = f"{wanted}_{number}"
        self.used_names[name] = None
        self.names[pre] = name
        return name

    # ------------------------------------------------------------ the whole

    def captured(self, outputs: Sequence[Any], spec: Any, static: str) -> Captured:
        """All steps; `static` is `parameters`, `none` or `declared`."""
        values = [self._output(leaf) for leaf in outputs]
        if self.computed:
            values = [copy_of(v) if isinstance(v, Value) and self._direct(v) else v for v in values]
        self.first: dict[str, int] = {self.names[t.node]: id(t.fake) for t in self.t.tensors}
        wanted = self._wanted(values)
        steps = self._programs(wanted)
        if static == "parameters" and self._fix_static([p for p, _, _ in steps.values()]):
            steps = self._programs(wanted)
        symbols = self._symbols()
        known = list(self.t.space.checks)
        guards = [g.expr for g in self.t.env.guards if g.expr is not sympy.true]
        early, late = self._sorted(known, guards)
        check, _ = symbols.compile(early)
        result = self._in_order(steps, symbols, late)
        self._verify(steps)
        return Captured(
            self.label,
            self.arguments,
            self.outside,
            result,
            tuple(self._result(v, leaf, symbols) for v, leaf in zip(values, outputs, strict=True)),
            spec,
            check if early else None,
            tuple(dict.fromkeys(map(self._for_people, early))),
            tuple(self.t.fallbacks),
        )

    def _output(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if not (isinstance(leaf, KEPT) or any(leaf is a.value for a in self.arguments)):
                kind = type(leaf).__name__
                raise Whole(f"the result holds an object of class {kind}, which each call may make anew")
            return self.t.expr(leaf)
        found = self.t.values.get(id(leaf))
        if found is None:
            tensor = self.t.outside.get(id(leaf))
            if tensor is None:
                raise Whole("the result is a tensor that was not computed here")
            return Value(tensor.node, tensor.node.axes, tensor.node.data)
        if isinstance(found[1], Poison):
            raise Retry(found[1].call, "its second result is used")
        return found[1]

    def _result(self, value: Any, leaf: Any, symbols: Symbols) -> Any:
        """The first result with a value is the tensor itself, and so is that very tensor wherever it occurs;
        others with the same value (a clone, a view) are copies: results never share memory unseen."""
        if isinstance(value, Value):
            name = self.placed[self._key(value)]
            own = id(self.t.outside[id(leaf)].fake) if id(leaf) in self.t.outside else id(leaf)
            return Named(name) if self.first.setdefault(name, own) == own else Copied(name)
        if isinstance(value, sympy.Basic):
            return Computed(symbols.value(value), self._for_people(value))
        if isinstance(leaf, torch.Size):
            return Shape(tuple(self._result(part, None, symbols) for part in value))
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*(self._result(part, None, symbols) for part in parts))
        return value

    def _symbols(self) -> Symbols:
        places: dict[sympy.Symbol, tuple[str, int]] = {}
        for symbol, var in self.t.space.of_symbol.items():
            for pre, name in self.names.items():
                if pre.kind == "input":
                    for axis, ixs in enumerate(pre.data):
                        if any(ix.var is var for ix in ixs):
                            places.setdefault(symbol, (name, axis))
        for symbol, number in self.t.numbers.items():
            places[symbol] = (number.name, -1)
        return Symbols(places)

    def _sorted(self, checks: list[Any], guards: list[Any]) -> tuple[list[Any], list[Any]]:
        """Conditions that arguments decide, and those that need a size that PyTorch computes."""
        late = [c for c in checks if any(s in self.t.late for s in c.free_symbols)]
        for guard in guards:
            if any(s in self.t.late for s in guard.free_symbols):
                raise Whole(f"Python asks about a size that PyTorch computes ({guard})")
        early = list(dict.fromkeys(c for c in (*checks, *guards) if c not in late and c is not sympy.true))
        return early, late

    def _for_people(self, condition: Any) -> str:
        names: dict[Any, Any] = {}
        for symbol in condition.free_symbols:
            var = self.t.space.of_symbol.get(symbol)
            number = self.t.numbers.get(symbol)
            label = number.name if number else (var.declared or var.label) if var is not None else str(symbol)
            names[symbol] = sympy.Symbol(label, **symbol.assumptions0)
        return str(condition.xreplace(names))

    # ------------------------------------------------------------ levels

    def _key(self, value: Value) -> Any:
        return (value.node, value.digits, value.axes)

    def _direct(self, value: Value) -> bool:
        """Whether a value is an input as it came."""
        return (
            value.node.kind == "input" and value.digits == value.node.axes and value.axes == value.node.data
        )

    def _wanted(self, outputs: Sequence[Any]) -> dict[int, list[tuple[str, Value]]]:
        """What each level's program must hand out, by name."""
        self.placed: dict[Any, str] = {}
        wanted: dict[int, list[tuple[str, Value]]] = {}
        for number, call in enumerate(self.t.calls):
            for slot, node in enumerate(call.outputs):
                if node is not None:
                    self._call(node, f"{call.name.strip('_')}{number}" + (f"_{slot}" if slot else ""))
        for call in self.t.calls:
            for leaf in pytree.tree_leaves((call.args, call.kwargs)):
                if isinstance(leaf, Value):
                    self._place(leaf, "given", wanted)
        tensors = [v for v in outputs if isinstance(v, Value)]
        for number, value in enumerate(tensors):
            self._place(value, "out" if len(tensors) == 1 else f"out{number}", wanted)
        return wanted

    def _place(self, value: Value, wanted: str, levels: dict[int, list[tuple[str, Value]]]) -> None:
        key = self._key(value)
        if key in self.placed:
            return
        if self._direct(value) or value.node.kind == "opaque":
            self.placed[key] = self.names[value.node]
            return
        name, number = wanted, 1
        while name in self.used_names:
            number += 1
            name = f"{wanted}_{number}"
        self.used_names[name] = None
        self.placed[key] = name
        levels.setdefault(value.level, []).append((name, value))

    def _is_closed(self, top: Pre) -> bool:
        """Whether a node depends on no input."""
        stack: list[tuple[Pre, bool]] = [(top, False)]
        while stack:
            pre, ready = stack.pop()
            if pre in self.closed:
                continue
            children = below(pre)
            if ready:
                self.closed[pre] = pre.kind not in ("input", "scalar") and all(
                    self.closed[c] for c in children
                )
                continue
            stack.append((pre, True))
            stack += [(c, False) for c in children if c not in self.closed]
        return self.closed[top]

    def _programs(
        self, wanted: Mapping[int, list[tuple[str, Value]]]
    ) -> dict[int, tuple[Program, tuple[str, ...], tuple[str, ...]]]:
        """The program of each level, from the last to the first, with its feeds and results."""
        names = self.last_names = self._named_dims()
        builder = Builder(self.t.space, names, self.t.floats)
        handed: dict[int, dict[Pre, str]] = {}
        made: dict[int, tuple[Program, tuple[str, ...], tuple[str, ...]]] = {}
        top = max([*wanted, *(c.level for c in self.t.calls), 0])
        several = bool(self.t.calls)
        for level in range(top, -1, -1):
            outputs = list(wanted.get(level, ()))
            outputs += [(name, _each_axis(pre)) for pre, name in handed.get(level, {}).items()]
            if not outputs:
                continue
            needed = self._needs(level, [v for _, v in outputs], handed)
            inputs = self._order(needed, several)
            suffix = f"_{level}" if several else ""
            program = builder.program(f"{self.label}{suffix}", inputs, outputs)
            made[level] = (program, tuple(n for n, _ in inputs), tuple(n for n, _ in outputs))
        return made

    def _named_dims(self) -> Names:
        names = Names(self.t.space)
        for item in self.t.tensors:
            for axis in item.node.data:
                for ix in axis:
                    leaves = leaf_vars(ix.var)
                    if len(leaves) == 1:
                        names.dim(leaves[0])
        return names

    def _needs(
        self, level: int, values: Sequence[Value], handed: dict[int, dict[Pre, str]]
    ) -> dict[Pre, str]:
        """The inputs of a level's program: arguments, results of PyTorch, values of earlier programs."""
        found: dict[Pre, str] = {}
        seen: dict[Pre, None] = {}
        stack = [v.node for v in values]
        while stack:
            pre = stack.pop()
            if pre in seen:
                continue
            seen[pre] = None
            if pre.kind in ("input", "scalar"):
                found[pre] = self.names[pre]
            elif pre.kind == "opaque":
                raise Retry(pre.call, "a result of a dtype that programs do not have")
            elif pre.level < level and not self._is_closed(pre):
                earlier = handed.setdefault(pre.level, {})
                if pre not in earlier:
                    name = f"t{len(self.used_names)}"
                    self.used_names[name] = None
                    earlier[pre] = name
                found[pre] = earlier[pre]
            else:
                stack += below(pre)
        return found

    def _order(self, needed: Mapping[Pre, str], several: bool) -> list[tuple[str, Pre]]:
        order: list[tuple[str, Pre]] = []
        arguments: dict[int, Pre] = {i.place: i.node for i in self.t.tensors if i.place >= 0}
        arguments |= {n.place: n.node for n in self.t.numbers.values()}
        firsts = [arguments[place] for place in sorted(arguments)]
        firsts += [i.node for i in self.t.tensors if i.place < 0]
        for pre in firsts:
            if not several or pre in needed:
                order.append((self.names[pre], pre))
        listed = {pre for _, pre in order}
        order += sorted(((n, p) for p, n in needed.items() if p not in listed), key=lambda item: item[0])
        return order

    def _in_order(self, made: Mapping[int, Any], symbols: Symbols, late: list[Any]) -> tuple[Step, ...]:
        steps: list[Step] = []
        top = max([*made, *(c.level for c in self.t.calls), 0])
        known: set[str] = {item.name for item in self.t.tensors}
        for level in range(top + 1):
            if level in made:
                program, feeds, results = made[level]
                steps.append(ProgramStep(program, feeds, results, self._typical(program)))
            for number, call in enumerate(self.t.calls):
                if call.level != level:
                    continue
                args, kwargs = pytree.tree_map(
                    lambda leaf: self._argument(leaf, symbols),
                    (call.args, call.kwargs),
                    is_leaf=lambda x: isinstance(x, Value),
                )
                results = tuple(self.names[n] if n is not None else None for n in call.outputs)
                known |= {r for r in results if r is not None}
                now = [
                    c
                    for c in late
                    if all(symbols.places[s][0] in known for s in c.free_symbols if s in self.t.late)
                ]
                late = [c for c in late if c not in now]
                check = symbols.compile(now)[0] if now else None
                steps.append(EagerStep(call.func, args, kwargs, results, check, self.t.fallbacks[number]))
        return tuple(steps)

    def _typical(self, program: Program) -> dict[Dim, int]:
        """The sizes of the captured call."""
        found = {d: v.hint for v, d in self.last_names.dim_of.items()}
        return {atom: found[atom] for atom in program.dynamic if atom in found}

    def _argument(self, leaf: Any, symbols: Symbols) -> Any:
        if isinstance(leaf, Value):
            return Named(self.placed[self._key(leaf)])
        if isinstance(leaf, sympy.Basic):
            return Computed(symbols.value(leaf))
        if isinstance(leaf, slice):
            return slice(*(self._argument(part, symbols) for part in (leaf.start, leaf.stop, leaf.step)))
        return leaf

    # ------------------------------------------------------------ static sizes

    def _fix_static(self, programs: Sequence[Program]) -> bool:
        """Make sizes static that meet a parameter or are a contracted last axis; says whether any is."""
        names = self.last_names
        chosen: dict[Atom, None] = {}
        parameters = {o.name for o in self.outside if o.parameter}
        for program in programs:
            for node in program.inputs:
                if isinstance(node.op, Input) and node.op.name in parameters:
                    chosen.update(dict.fromkeys(a for d in node.dims for a in atoms_of(d)))
            for node in program.nodes:
                if isinstance(node.op, Contract):
                    for index in node.bound:
                        if any(_is_last_axis(arg, index.dim) for arg in node.op.args):
                            chosen.update(dict.fromkeys(atoms_of(index.dim)))
        found = False
        for var in self.t.space.vars:
            if (
                var.parent is not None
                or var.factors is not None
                or var.parts is not None
                or var.value is not None
            ):
                continue
            if names.dim_of.get(var) in chosen and var.length is None:
                self.t.space.fix(var, var.hint)
                found = True
        return found

    def _verify(self, made: Mapping[int, tuple[Program, tuple[str, ...], tuple[str, ...]]]) -> None:
        """The sizes of each program follow from the shapes of its inputs."""
        for program, feeds, _ in made.values():
            shapes = {n: self.shapes[n] for n in feeds if n in self.shapes}
            if len(shapes) < sum(isinstance(node.op, Input) for node in program.inputs):
                continue
            try:
                infer_sizes(program, shapes)
            except Invalid as error:
                raise Whole(f"sizes do not follow from the arguments: {error.what}") from error


def _each_axis(pre: Pre) -> Value:
    return whole(pre, [(ix,) for ix in leaves_of(pre.axes)])


def _is_last_axis(access: Access, dim: Dim) -> bool:
    """Whether a contracted dim is the last axis of an argument that reaches the contraction pointwise."""
    stack: list[Node] = [access.node]
    seen: dict[Node, None] = {}
    last = False
    while stack:
        node = stack.pop()
        if node in seen or dim not in node.dims:
            continue
        seen[node] = None
        if isinstance(node.op, Input):
            if node.dtype.startswith(("f", "bf")):
                last = last or (bool(node.op.layout) and dim in node.op.layout[-1])
        elif isinstance(node.op, Map):
            stack += [a.node for a in node.op.args]
        else:
            return False
    return last
