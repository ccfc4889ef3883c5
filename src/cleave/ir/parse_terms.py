"""Reads dims, index terms and accesses, and keeps what has been declared where a text is read.

    2*i - T + 1     in0(i)     join(p, i)     lookup(tile)     ids[i]     x[i, j + 1]

`parse` reads the operations and programs around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from cleave.ir.dims import Atom, Dim, Extent, Gather, Index, Inject, Join, Leaf, Lookup, Term, extent, term
from cleave.ir.lexis import Cursor, Token, parse_dim
from cleave.ir.ops import Access, Node


@dataclass(slots=True)
class Known:
    """What is known where a text is read: `atoms` holds the names of the dims that are declared so far, and
    `nodes` the values by name. While `pending` is a list, dims may be used before they are declared, and are
    noted there."""

    cursor: Cursor
    atoms: set[str]
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    pending: list[tuple[str, Token]] | None = None

    def dim(self) -> Dim:
        """A dim that is declared."""
        return parse_dim(self.cursor, self._atom)

    def _atom(self) -> Atom:
        token = self.cursor.peek()
        return self.declared(self.cursor.name("a dim"), token)

    def declared(self, name: str, token: Token) -> Atom:
        """The atom of a name that stands at `token`; a `ParseError` if nothing declares it."""
        if self.pending is not None:
            self.pending.append((name, token))
        elif name not in self.atoms:
            hint = f"dims are declared by inputs, or by `where {name}`; here: {listed(self.atoms)}"
            raise self.cursor.error(f"dim {name} is not declared", token, hint)
        return Atom(name)

    def new_atom(self) -> Atom:
        """The atom of a name, which is declared hereby."""
        name = self.cursor.name("a dim")
        self.atoms.add(name)
        return Atom(name)

    def term(self, indices: dict[str, Index]) -> Term:
        """An index term, for the indices that are in scope."""
        leaves: list[tuple[Leaf, int]] = []
        offset = Extent()
        sign = -1 if self.cursor.accept("-") else 1
        while True:
            leaf, factor = self._product(indices)
            if isinstance(leaf, Extent):
                offset += leaf * (sign * factor)
            else:
                leaves.append((leaf, sign * factor))
            if not self.cursor.at("+") and not self.cursor.at("-"):
                return term(*leaves, offset=offset)
            sign = 1 if self.cursor.take().text == "+" else -1

    def _product(self, indices: dict[str, Index]) -> tuple[Leaf | Extent, int]:
        factor = 1
        if self.cursor.peek().kind == "number":
            factor = self.cursor.integer("an integer")
            if not self.cursor.accept("*"):
                return Extent(factor), 1
        return self._leaf(indices), factor

    def _leaf(self, indices: dict[str, Index]) -> Leaf | Extent:
        cursor, token = self.cursor, self.cursor.peek()
        call = cursor.at("(", 1) and token.kind == "name"
        if call and (token.text in ("join", "lookup") or re.fullmatch(r"in\d+", token.text)):
            return self._call(indices)
        if token.kind in ("name", "quoted") and cursor.at("[", 1):
            return Gather(self.access(indices))
        if token.kind == "name" and token.text in indices:
            return indices[cursor.take().text]
        if cursor.at("(") or (call and token.text in ("parts", "part")):
            return extent(0, (self.dim(), 1))
        name = cursor.name("an index, a dim or a gather")
        if self.pending is None and name not in self.atoms:
            known = f"indices here: {listed(indices)}; dims: {listed(self.atoms)}"
            raise cursor.error(f"there is no index and no dim called {name}", token, known)
        return extent(0, (self.declared(name, token), 1))

    def _call(self, indices: dict[str, Index]) -> Leaf:
        word = self.cursor.take().text
        self.cursor.expect("(")
        if word == "lookup":
            leaf: Leaf = Lookup(self.cursor.name("a tile"))
        elif word == "join":
            part = self.term(indices)
            self.cursor.expect(",")
            leaf = Join(part, self.term(indices))
        else:
            leaf = Inject(int(word[2:]), self.term(indices))
        self.cursor.expect(")")
        return leaf

    def access(self, indices: dict[str, Index]) -> Access:
        """`x[i, j + 1]`, or just `x` for a node without axes."""
        token = self.cursor.peek()
        node = self.node()
        terms = self.cursor.sequence(lambda: self.term(indices), "]") if self.cursor.accept("[") else []
        if len(terms) != len(node.axes):
            dims = f"[{', '.join(map(str, node.dims))}]"
            what = f"{token.text} has axes {dims}, and is read with {len(terms)} terms"
            raise self.cursor.error(what, token)
        return Access(node, tuple(terms))

    def node(self) -> Node:
        """A node by its name."""
        token = self.cursor.peek()
        name = self.cursor.name("a node")
        if name not in self.nodes:
            raise self.cursor.error(f"{name} is not defined", token, f"defined above: {listed(self.nodes)}")
        return self.nodes[name]

    def declare(self, indices: dict[str, Index]) -> list[Index]:
        """`i: N, j: K]`, after the opening bracket; adds to the indices that are known."""

        def one() -> Index:
            token = self.cursor.peek()
            name = self.cursor.name("an index")
            if name in indices:
                raise self.cursor.error(f"index {name} is declared twice", token)
            self.cursor.expect(":")
            indices[name] = Index(self.dim(), len(indices))
            return indices[name]

        return self.cursor.sequence(one, "]")


def listed(names: Iterable[str]) -> str:
    """Names in alphabetical order for a hint, `none` if there are none."""
    return ", ".join(sorted(names)) or "none"
