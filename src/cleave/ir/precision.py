"""The precision pass: gives every value of a candidate its dtype (design.md, "Numerical standing").

Algebra computes over the reals; here each value gets the dtype it is computed in. Float intermediates are
float32 (float64 where the user's are). The operands of a product that matrix units can compute are
narrowed to the dtype that the user's own product of the same tensors has; its accumulator stays float32.
Casts among floats in the user's program are precision notes: they bind outputs, not intermediates.
Functions that the user's program rounds to bf16 need not be exact to the last places of float32: they
become coarse ones, which a machine may have as one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cleave.ir.candidate import Candidate, Condition, Element, Fold, Value
from cleave.ir.ops import FLOATS, Access, Const, Contract, Input, Map, Node, Scalar, Scan, make_node
from cleave.ir.program import Program, sort_nodes
from cleave.ir.rewrite import Replaced, replace_access, replace_arguments, replace_nodes, rewrite
from cleave.knobs import knobs

NARROW = ("f16", "bf16")
COARSE = {"tanh": "tanh_coarse"}
"""Functions of which there is a coarse form, and that."""
MOST_HALF = 65504.0
MOST_EXPONENT = {"f32": 60.0, "f64": 600.0}
"""Largest exponents whose exponentials may be summed by the billion, and divided by, without overflow."""


def assign(candidate: Candidate, user: Program) -> Candidate:
    """The candidate with every dtype final and every needed cast a node of its own.

    Inputs and outputs keep the dtypes of `user`, the program as captured."""
    products = _product_dtypes(user)
    pass_ = _Pass(_wide(user), {n: products.get(n, "") for n in candidate.program.inputs}, coarse_of(user))
    replaced = rewrite((o.node for o in candidate.program.outputs), pass_.visit)
    for output, wanted in zip(candidate.program.outputs, user.outputs, strict=True):
        replaced[output.node] = _cast(replaced[output.node], output.node, wanted.node.dtype)
    program = replace_nodes(candidate.program, replaced)
    # Values and elements follow the nodes themselves, not the casts put behind outputs.
    inner = dict(pass_.computed)
    folds = tuple(_assign_fold(fold, inner, pass_) for fold in candidate.folds)
    return replace(candidate, program=program, folds=folds)


def coarse_of(user: Program) -> frozenset[str]:
    """The functions that may be coarse in what stands for the user's program: those that it rounds to bf16
    wherever it has them, and nothing where numerics is `strict`. (To float16 a tanh near 1 is rounded twice
    as well as a coarse one may be.)

    Wherever: to algebra a value is the same in all dtypes, so that a candidate may have one node for a value
    that the user computes in two, and its dtype says nothing of where it goes."""
    if knobs().numerics == "strict" or _wide(user) != "f32":
        return frozenset()
    found: dict[str, set[str]] = {}
    programs, seen = [user], set[Program]()
    while programs:
        program = programs.pop()
        for node in program.nodes:
            if isinstance(node.op, Map) and node.op.fn in COARSE:
                found.setdefault(node.op.fn, set()).add(node.dtype)
            elif isinstance(node.op, Scan) and node.op.body not in seen:
                seen.add(node.op.body)
                programs.append(node.op.body)
    return frozenset(fn for fn, dtypes in found.items() if dtypes == {"bf16"})


def narrows(condition: Condition, dtype: str) -> bool:
    """Does a candidate stand worse than the user's program by this condition, if its operands have `dtype`?

    Algebra marks an operand that nothing bounds by the user's own with its magnitude, `|x|`; float16, whose
    largest number is 65504, may not hold it, dtypes with the exponents of float32 always do."""
    if condition.kind != "range" or not condition.bound.startswith("|") or dtype != "f16":
        return False
    number = condition.bound.rpartition("<= ")[2]
    return number == condition.bound or float(number) > MOST_HALF


def overflows(condition: Condition, dtype: str) -> bool:
    """May an exponential whose exponent has this bound overflow in `dtype`, summed? (One without a bound may
    do so in the user's program as well.)"""
    if condition.kind != "exponent" or not condition.bound.startswith("<= "):
        return False
    return float(condition.bound.removeprefix("<= ")) > MOST_EXPONENT[dtype]


def rounds_operands(candidate: Candidate, user: Program) -> bool:
    """Does a candidate round to 16 bits what the user's program multiplies as it is: an input of a product of
    inputs, scaled before it instead of behind it? Each term of the sum is then off by half a unit, and terms
    that cancel leave that; the user's own rounding is of the sum (of the terms, too, where an operand of the
    user's is computed). A power of two scales exactly."""
    given: set[Node] = set()
    for node in user.nodes:
        sources = [access.node for access in node.args] if is_matrix_product(pair_operands(node)) else []
        if all(isinstance(n.op, Input) and n.dtype in NARROW for n in sources):
            given.update(sources)
    products = (pair_operands(node) for node in candidate.program.nodes)
    operands = (a.node for product in products if is_matrix_product(product) for a in product.args)
    return bool(given) and any(given & _scaled(operand) for operand in operands)


def _scaled(node: Node) -> set[Node]:
    """The inputs that a node is a multiple of, by anything but a power of two."""
    inexact, found, stack = False, set[Node](), [node]
    while stack:
        one = stack.pop()
        match one.op:
            case Map(fn=fn) if fn in ("mul", "div", "neg", "cast", "id"):
                stack += [access.node for access in one.args]
            case Const(value):
                inexact |= math.frexp(float(value))[0] not in (0.5, -0.5)
            case Input():
                inexact |= bool(found)
                found.add(one)
            case _:
                inexact = True
    return found if inexact else set()


def _wide(program: Program) -> str:
    """The dtype of intermediates: float64 only where the user's program has it."""
    dtypes = {n.dtype for n in program.nodes if not isinstance(n.op, Const | Scalar)}
    return "f64" if "f64" in dtypes else "f32"


def _product_dtypes(program: Program) -> dict[Node, str]:
    """For each input, the operand dtype of the first matrix product above it in the user's program."""
    found: dict[Node, str] = {}
    below: dict[Node, frozenset[Node]] = {}
    for node in program.nodes:
        own = frozenset({node}) if isinstance(node.op, Input) else frozenset[Node]()
        below[node] = own.union(*(below[a.node] for a in node.reads))
        if is_matrix_product(pair_operands(node)):
            dtypes = [a.node.dtype for a in node.args if a.node.dtype in FLOATS]
            dtype = max(dtypes, key=_width, default="")
            for source in sorted(below[node], key=lambda n: n.digest):
                found.setdefault(source, dtype)
    return found


def _width(dtype: str) -> int:
    return {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}.get(dtype, 0)


def is_matrix_product(node: Node) -> bool:
    """Whether two operands each have an axis of the result that the other lacks (rows and columns)."""
    if not isinstance(node.op, Contract) or len(node.args) != 2:
        return False
    left, right = ({i for i in a.indices if i in node.axes} for a in node.args)
    return bool(left - right) and bool(right - left)


def pair_operands(node: Node) -> Node:
    """A product of more than two operands as one of two: operands whose indices all occur in another one are
    multiplied into it first, pointwise, so that what is left is what matrix units compute."""
    if not isinstance(node.op, Contract) or len(node.op.args) < 3:
        return node
    operands = list(node.op.args)
    while len(operands) > 2:
        pair = next(
            (
                (small, large)
                for small in range(len(operands))
                for large in range(len(operands))
                if small != large and operands[small].indices <= operands[large].indices
            ),
            (0, 1),
        )
        small, large = (operands[n] for n in pair)
        indices = sorted(small.indices | large.indices, key=lambda i: i.number)
        wide = "f64" if "f64" in (small.node.dtype, large.node.dtype) else "f32"
        product = make_node(Map("mul", (large, small)), indices, wide)(*indices)
        operands = [product if n == max(pair) else o for n, o in enumerate(operands) if n != min(pair)]
    return make_node(Contract(node.op.bound, tuple(operands)), node.axes, node.dtype)


@dataclass
class _Pass:
    wide: str
    products: Mapping[Node, str]
    """The narrow dtype, if any, that each input is multiplied in."""
    coarse: frozenset[str]
    """The functions that may be coarse."""
    computed: dict[Node, Access] = field(default_factory=dict[Node, Access])
    below: dict[Node, frozenset[Node]] = field(default_factory=dict[Node, frozenset[Node]])
    narrowed: dict[Node, str] = field(default_factory=dict[Node, str])

    def visit(self, node: Node, replaced: Replaced) -> Access:
        self.below[node] = frozenset({node} if isinstance(node.op, Input) else ()).union(
            *(self.below[a.node] for a in node.reads)
        )
        result = self._visit(node, replaced)
        self.computed[node] = result
        return result

    def _visit(self, node: Node, replaced: Replaced) -> Access:
        if isinstance(node.op, Input | Scalar) or node.dtype not in FLOATS:
            return replace_arguments(node, replaced).read()
        if isinstance(node.op, Map) and node.op.fn in ("cast", "id"):
            source = node.op.args[0]
            if source.node.dtype in FLOATS:
                return replace_access(source, replaced)
        if is_matrix_product(pair_operands(node)):
            sources = sorted(self.below[node], key=lambda n: n.digest)
            dtypes = [self.products.get(n, "") or self.wide for n in sources if n.dtype in FLOATS]
            dtype = max(dtypes, key=_width, default=self.wide)
            if dtype in NARROW:
                self.narrowed[node] = dtype
            return narrow_product(pair_operands(replace_arguments(node, replaced, self.wide)), dtype).read()
        return self.coarsened(replace_arguments(node, replaced, self.wide)).read()

    def coarsened(self, node: Node) -> Node:
        """The node with the coarse form of its function, if that may be."""
        if not isinstance(node.op, Map) or node.op.fn not in self.coarse or node.dtype != "f32":
            return node
        return make_node(Map(COARSE[node.op.fn], node.op.args), node.axes, node.dtype)

    def coarsened_program(self, program: Program) -> Program:
        """The same of a whole program: one of a fold, so that equal values stay equal in it and around it."""
        if not any(isinstance(n.op, Map) and n.op.fn in self.coarse for n in program.nodes):
            return program

        def visit(node: Node, replaced: Replaced) -> Access:
            return self.coarsened(replace_arguments(node, replaced)).read()

        nodes = sort_nodes([*program.inputs, *(o.node for o in program.outputs)])
        return replace_nodes(program, rewrite(nodes, visit))


def narrow_product(node: Node, dtype: str) -> Node:
    """The product with every operand of one dtype, by casts where they are not, and with the operand that has
    the result's first axis on the left: rows of the result are rows of the left operand."""
    assert isinstance(node.op, Contract)
    node = rows_first(node)
    assert isinstance(node.op, Contract)
    args = tuple(
        a if a.node.dtype == dtype else make_node(Map("cast", (a.node.read(),)), a.node.axes, dtype)(*a.terms)
        for a in node.op.args
    )
    return make_node(Contract(node.op.bound, args), node.axes, node.dtype)


def rows_first(node: Node) -> Node:
    """The product with its two operands in the order of the result's axes."""
    if not isinstance(node.op, Contract) or len(node.op.args) != 2:
        return node
    left, right = node.op.args
    own = [i for i in node.axes if (i in left.indices) != (i in right.indices)]
    if not own or own[0] in left.indices:
        return node
    return make_node(Contract(node.op.bound, (right, left)), node.axes, node.dtype)


def _cast(access: Access, old: Node, dtype: str) -> Access:
    if access.node.dtype == dtype:
        return access
    return make_node(Map("cast", (access,)), old.axes, dtype).read()


def _assign_fold(fold: Fold, replaced: Replaced, pass_: _Pass) -> Fold:
    """The fold over the replaced nodes: its inputs take the elements' new dtypes, and its products are
    narrowed as the product that they stand for."""
    elements = tuple(Element(e.name, replace_access(e.access, replaced)) for e in fold.elements)
    values = tuple(Value(v.name, replaced[v.node].node) for v in fold.values)
    dtypes = {e.name: e.access.node.dtype for e in elements}
    narrow = {pass_.narrowed[v.node] for v in fold.values if v.node in pass_.narrowed}
    dtype = min(narrow, default="")
    support = None if fold.support is None else replace_access(fold.support, replaced)
    step = pass_.coarsened_program(_assign_step(fold.step, dtypes, dtype))
    merge, finish = pass_.coarsened_program(fold.merge), pass_.coarsened_program(fold.finish)
    fold = replace(fold, elements=elements, values=values, support=support)
    return replace(fold, step=step, merge=merge, finish=finish)


def _assign_step(step: Program, dtypes: Mapping[str, str], product: str) -> Program:
    def visit(node: Node, replaced: Replaced) -> Access:
        if isinstance(node.op, Input):
            return make_node(node.op, node.axes, dtypes.get(node.op.name, node.dtype)).read()
        new = pair_operands(replace_arguments(node, replaced))
        if is_matrix_product(new):
            operands = {a.node.dtype for a in new.args}
            new = narrow_product(new, product or max(operands, key=_width))
        return new.read()

    nodes = sort_nodes([*step.inputs, *(o.node for o in step.outputs)])
    return replace_nodes(step, rewrite(nodes, visit))
