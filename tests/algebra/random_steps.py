"""Where random laws are applied, and where they must not be: some hold only for what is finite.

A law holds *exactly* at a place if it changes no value there, infinities and NaN among them. A law that holds
where both sides are numbers (a product with 0 for a choice, say) makes NaN where there was none. It is
applied where it holds exactly, or where nothing asks whether there is a number: a comparison with NaN is
false, so one law that makes NaN, and another that turns a comparison, would change a value together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from algebra.random_programs import Drawn
from algebra.random_rewrites import GENERAL, LAWS, Law, fn_of, inner, kind_of
from algebra.random_sorts import HIGH, INFINITE, LOW, NOT_FINITE, free_of
from cleave.ir.ops import FLOATS, Access, Map, Node
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite


def rewritten(seed: str, length: int = 9) -> tuple[Program, Program, list[str]]:
    """A random program, the same after 1 to 5 laws at random places, and the names of the laws. A choice is
    blended only where that holds exactly: nearly always nothing is proved where it does not."""
    rng = random.Random(seed)
    program = Drawn(seed).program(length)
    new, used = apply_laws(program, LAWS | {"select blended": _blended}, rng.randint(1, 5), rng)
    return program, new, used


def _blended(n: Node, rng: random.Random) -> Access | None:
    return LAWS["select blended"](n, rng) if exact("select blended", n) else None


def apply_laws(
    program: Program, laws: Mapping[str, Law], count: int, rng: random.Random
) -> tuple[Program, list[str]]:
    """The program after `count` of the laws at random places (fewer if they fit nowhere), and their names."""
    used: list[str] = []
    for _ in range(count):
        program, name = apply_law(program, laws, rng)
        if name:
            used.append(name)
    return program, used


def apply_law(
    program: Program, laws: Mapping[str, Law], rng: random.Random, general: frozenset[str] = GENERAL
) -> tuple[Program, str]:
    """The program after one of the laws at a random place, and its name; no name if none was found to fit.
    Laws that say something of any value are tried first only now and then."""
    nodes = [n for n in program.nodes if n not in program.inputs]
    asked = watched(program)
    special = [name for name in sorted(laws) if name not in general]
    rest = [name for name in sorted(laws) if name in general]
    rng.shuffle(nodes)
    for some in (special, rest) if rng.random() < 0.65 else (rest, special):
        rng.shuffle(some)
        for place in nodes:
            for name in some:
                if place in asked and not exact(name, place):
                    continue
                found = laws[name](place, rng)
                if found is not None and found != place.read():
                    return replace_nodes(program, _placed(program, place, found)), name
    return program, ""


def _placed(program: Program, place: Node, found: Access) -> dict[Node, Access]:
    def visit(node: Node, replaced: Replaced) -> Access:
        return found if node is place else replace_arguments(node, replaced).read()

    return rewrite((o.node for o in program.outputs), visit)


def watched(program: Program) -> set[Node]:
    """What something is made of that is a number where its argument is NaN: truths and integers."""
    found: set[Node] = set()
    for node in reversed(program.nodes):
        asks = isinstance(node.op, Map) and node.dtype not in FLOATS
        if asks or node in found:
            found |= {a.node for a in node.args}
    return found


def exact(name: str, place: Node) -> bool:
    """Does a law hold at a place for every value that what it reads there may have?"""
    said, holds = PARTIAL.get(name, ("", _always))
    return said not in (fn_of(place), kind_of(place), "any") or holds(place)


def _always(n: Node) -> bool:
    return True


def _finite(access: Access) -> bool:
    return free_of(access, *NOT_FINITE)


def _exp_of_sum(n: Node) -> bool:
    """`exp(a - b)` is `exp(a) / exp(b)`, but 0 divides nothing."""
    read = n.args[0]
    return fn_of(read.node) != "sub" or free_of(read.node.args[1], LOW)


def _pulled(n: Node) -> bool:
    """A sum of nothing is 0, and so is 0 times a number."""
    return all(_finite(a) for a in inner(n.args[0]) if a.indices.isdisjoint(n.bound))


def _local_maxima(n: Node) -> bool:
    """Less a maximum of inf there is nothing left."""
    return all(free_of(a, HIGH) for a in n.args[0].node.args)


PARTIAL: dict[str, tuple[str, Callable[[Node], bool]]] = {
    "exp inverted": ("exp", lambda n: free_of(n.args[0], HIGH)),
    "exp of a sum": ("exp", _exp_of_sum),
    "distributed": ("mul", lambda n: free_of(n.args[0], *INFINITE)),
    "pushed into a sum": ("mul", lambda n: _finite(n.args[1])),
    "pulled out of a sum": ("sum", _pulled),
    "max by magnitude": ("max", lambda n: all(free_of(a, *INFINITE) for a in n.args)),
    "select blended": ("select", lambda n: all(map(_finite, n.args[1:]))),
    "over and times": ("any", lambda n: False),
    "split with local maxima": ("sum", _local_maxima),
}
"""What the laws that hold for numbers are said of, and when they hold exactly."""
