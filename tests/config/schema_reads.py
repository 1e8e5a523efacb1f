"""Finds out which keys of the configuration's schema the code reads.

It infers the types of expressions from annotations and from the schema itself, function by function. That is enough
for code that is annotated throughout; what it cannot see stands in ``test_unsupported.READ_OTHERWISE``.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

import openclaw
from openclaw.config.schema import Config
from openclaw.config.validate import record_in, shape_of
from tests.support.sources import many_nodes, parsed

ROOT = Path(openclaw.__file__).parent
READERS_IN_CONFIG = ("agents.py", "channels.py", "secrets.py", "store.py")
"""The other modules of ``config/`` only check and carry values."""

ALIASES = {"ModelSetting": "ModelChoice", "Secret": "SecretRef"}

Types = frozenset[str]


class Key(msgspec.Struct, frozen=True):
    """A key of the configuration that is no section of keys itself."""

    path: str
    """As in the file; ``[]`` is an item of a list, ``*`` any key of a map."""
    fields: tuple[tuple[str, str], ...]
    """The fields on the way to it, its own last, each with the class that declares it."""


class Schema:
    """The records of the schema by class name, and all keys."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[str, str]] = defaultdict(dict)
        """Class → field → class of the record that the field holds, alone or in a list or map; empty without one."""
        self.owners: dict[tuple[str, str], str] = {}
        """Class and field → the first class that declares the field: what is read of it is read of all."""
        self.keys = list(self._walk(Config, "", ()))

    def _walk(self, record: type[msgspec.Struct], prefix: str, above: tuple[tuple[str, str], ...]) -> Iterator[Key]:
        for field in msgspec.structs.fields(record):
            shape = shape_of(field.type)
            free = field.name == getattr(record, "catch_all", "")
            path = prefix + ("*" if free else field.encode_name)
            inner, mark = record_in(shape)
            self.fields[record.__name__][field.name] = inner.__name__ if inner else ""
            declaring = [base for base in record.__mro__ if field.name in inspect.get_annotations(base)]
            owner = declaring[-1]
            for base in record.__mro__[: record.__mro__.index(owner) + 1]:
                self.owners[base.__name__, field.name] = owner.__name__
                self.fields[base.__name__].setdefault(field.name, inner.__name__ if inner else "")
            fields = (*above, (owner.__name__, field.name))
            if inner is None:
                yield Key(path, fields)
            else:
                yield from self._walk(inner, f"{path}{'' if free else mark}.", fields)


class Reads:
    """The (class, field) pairs that code outside the configuration's own machinery reads."""

    @many_nodes()
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.found: set[tuple[str, str]] = set()
        self._returns: dict[str, Types] = defaultdict(frozenset)
        self._attributes: dict[str, Types] = defaultdict(frozenset)
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        for path in _sources():
            functions += self._declarations(parsed(path))
        for function in functions:
            self._function(function)

    def __contains__(self, key: Key) -> bool:
        return self.found.issuperset(key.fields)

    def _declarations(self, tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Keeps the types that are declared in a file. Yields its functions."""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node
                self._returns[node.name] |= self._named(node.returns)
                if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
                    self._attributes[node.name] |= self._named(node.returns)
                if node.name == "__init__":
                    for argument in (*node.args.args, *node.args.kwonlyargs):
                        name = argument.arg.removeprefix("_")
                        self._attributes[name] |= self._named(argument.annotation)
                        self._attributes[f"_{name}"] |= self._named(argument.annotation)
            elif isinstance(node, ast.AnnAssign):
                target = node.target
                name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
                self._attributes[name] |= self._named(node.annotation)

    def _named(self, annotation: ast.expr | None) -> Types:
        """The schema's records that an annotation names."""
        if annotation is None:
            return frozenset()
        names = {ALIASES.get(node.id, node.id) for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        return frozenset(names & self.schema.fields.keys())

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        names = {argument.arg: self._named(argument.annotation) for argument in arguments}
        nodes = list(ast.walk(function))
        bindings = [
            (name.id, value)
            for node in nodes
            if isinstance(node, _BINDING)
            for target, value in _bindings(node)
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        ]
        # Twice, because a name may be bound after the place where the walk first meets it.
        for name, value in (*bindings, *bindings):
            names[name] = names.get(name, frozenset()) | self._types(value, names)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                for record in self._types(node.value, names):
                    if owner := self.schema.owners.get((record, node.attr)):
                        self.found.add((owner, node.attr))

    def _types(self, node: ast.expr, names: dict[str, Types]) -> Types:
        match node:
            case ast.Name():
                return names.get(node.id, frozenset())
            case ast.Attribute():
                owners = self._types(node.value, names)
                inner = {self.schema.fields[owner].get(node.attr, "") for owner in owners} - {""}
                return frozenset(inner) or self._attributes[node.attr]
            case ast.Call(func=ast.Attribute(attr="get" | "values" | "items" | "copy") as called):
                return self._types(called.value, names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                passed = [self._types(argument, names) for argument in node.args] if name in ("list", "next") else []
                return (self._returns[name] | self._attributes[name]).union(*passed)
            case ast.BoolOp():
                return frozenset().union(*(self._types(value, names) for value in node.values))
            case ast.IfExp():
                return self._types(node.body, names) | self._types(node.orelse, names)
            case ast.NamedExpr() | ast.Subscript() | ast.Await() | ast.Starred():
                return self._types(node.value, names)
            case ast.GeneratorExp() | ast.ListComp():
                return self._types(node.elt, names)
            case ast.List() | ast.Tuple():
                return frozenset().union(*(self._types(item, names) for item in node.elts))
            case _:
                return frozenset()


def _sources() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT).parts
        if inside[0] == "security":
            continue  # The audit judges settings. Nothing follows from that.
        if inside[0] != "config" or (inside[-1] in READERS_IN_CONFIG and len(inside) == 2):
            yield path


_BINDING = (ast.Assign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign():
            yield from ((target, node.value) for target in node.targets)
        case ast.NamedExpr():
            yield node.target, node.value
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            yield node.target, node.iter
        case _:
            return
