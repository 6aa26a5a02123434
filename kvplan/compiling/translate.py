"""Kernels as LLVM sees them: functions on a state, in a small part of Python, as one module of its language.

A kernel has whole numbers, floats and truth values, and a variable stays what it first was. It reads and writes
elements of the state's arrays, calls kernels, and has `if`, `while`, and `for` over a `range`; all else is refused with
a `TypeError`. Of several states, given as a tuple, it takes one by its index. Elements are counted from the end where
an index is negative, and nothing checks the ends. Types follow from annotations, so that there is nothing to infer, and
little time to take.
"""

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_origin

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

INT, FLOAT, BOOL, VOID = ir.IntType(64), ir.DoubleType(), ir.IntType(1), ir.VoidType()
_ANNOTATED = {"int": INT, "float": FLOAT, "bool": BOOL}
_COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_ROUNDED = {math.floor: "llvm.floor", math.ceil: "llvm.ceil"}
_FUNCTIONS = {math.log: "llvm.log", math.sqrt: "llvm.sqrt", np.sqrt: "llvm.sqrt"}
_LARGER = {max: ">", np.maximum: ">", min: "<"}


class _State(NamedTuple):
    pointer: ir.Value


class _States(NamedTuple):
    """Several states, one behind the other."""

    pointer: ir.Value


class _Array(NamedTuple):
    """An array of the state: where its address and its shape stand."""

    pointer: ir.Value
    field: int


def translated(
    loop: Callable[..., int], state: type[tuple[Any, ...]], constants: dict[Callable[..., Any], bool]
) -> str:
    """Return a module with a function `loop`, of the address of a state, or of several, and of whole numbers.

    A state is given as the address, and the first and second length, of each array that `state` has, a named tuple.
    Several are given one behind the other, where the first parameter of the loop is a tuple. `constants` are functions
    of the state whose value is known.
    """
    unit = _Unit(state, constants)
    first, *others = inspect.signature(loop).parameters.values()
    many = get_origin(first.annotation) is tuple
    body = unit.function(loop, (_States if many else _State, *[INT] * len(others)))
    body.linkage, body.name = "", "loop"
    return str(unit.module)


class _Unit:
    """A module under construction."""

    def __init__(self, state: type[tuple[Any, ...]], constants: dict[Callable[..., Any], bool]) -> None:
        self.module = ir.Module("kernels")
        self.constants, self._functions = constants, dict[Any, ir.Function]()
        columns = inspect.get_annotations(state) or inspect.get_annotations(state.__mro__[1])
        self.fields = list(columns)
        self.elements = [FLOAT if kind == NDArray[np.float64] else INT for kind in columns.values()]
        self.state = ir.LiteralStructType(
            [part for element in self.elements for part in (element.as_pointer(), INT, INT)]
        )
        domain = self.module.add_metadata([ir.MetaDataString(self.module, "state")])
        scopes = [
            self.module.add_metadata([ir.MetaDataString(self.module, name), domain]) for name in self.fields
        ]
        self.mine = [self.module.add_metadata([scope]) for scope in scopes]
        self.others = [self.module.add_metadata([s for s in scopes if s is not scope]) for scope in scopes]
        self.constant = self.module.add_metadata([])

    def function(self, source: Callable[..., Any], kinds: tuple[Any, ...]) -> ir.Function:
        """Translate a kernel for such arguments."""
        key = (source, kinds)
        if key not in self._functions:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(source))).body
            assert isinstance(tree, ast.FunctionDef)
            result = VOID if isinstance(tree.returns, ast.Constant) else _annotated(tree.returns) or FLOAT
            types = [kind if isinstance(kind, ir.Type) else self.state.as_pointer() for kind in kinds]
            made = ir.Function(
                self.module, ir.FunctionType(result, types), f"{source.__name__}.{len(self._functions)}"
            )
            made.linkage = "internal"
            made.attributes.add("nounwind")
            self._functions[key] = made
            _Body(self, source, tree, made, kinds)
        return self._functions[key]


def _annotated(node: ast.expr | None) -> ir.Type | None:
    return _ANNOTATED.get(node.id) if isinstance(node, ast.Name) else None


class _Body:
    """The body of a kernel."""

    def __init__(
        self,
        unit: _Unit,
        source: Callable[..., Any],
        tree: ast.FunctionDef,
        made: ir.Function,
        kinds: tuple[Any, ...],
    ) -> None:
        self.unit, self.globals, self.made = unit, source.__globals__, made
        self.result = made.function_type.return_type
        self.variables: dict[str, Any] = {}
        self.loops: list[tuple[ir.Block, ir.Block]] = []  # where `continue` and `break` go
        entry = made.append_basic_block()
        self.head = ir.IRBuilder(entry)  # variables
        self.b = ir.IRBuilder(made.append_basic_block())
        start = self.b.block
        for argument, kind, value in zip(tree.args.args, kinds, made.args, strict=True):
            if kind in (_State, _States):
                self.variables[argument.arg] = kind(value)
            elif isinstance(kind, int):
                self.variables[argument.arg] = _Array(value, kind)
            else:
                self.set_variable(argument.arg, value)
        self.suite(tree.body)
        if not self.b.block.is_terminated:
            self.b.ret_void() if self.result == VOID else self.b.unreachable()
        self.head.branch(start)

    # ------------------------------------------------------------------------------------------------ statements

    def suite(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.b.block.is_terminated:
                return
            handler = getattr(self, f"do_{type(statement).__name__.lower()}", None)
            if handler is None:
                raise self.refused(statement)
            handler(statement)

    def refused(self, node: ast.AST) -> TypeError:
        return TypeError(f"no kernel has this, in {self.made.name}: {ast.unparse(node)}")

    def do_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def do_pass(self, node: ast.Pass) -> None:
        pass

    def do_return(self, node: ast.Return) -> None:
        if node.value is None:
            self.b.ret_void()
        else:
            self.b.ret(self.as_type(self.value(node.value), self.result))

    def do_continue(self, node: ast.Continue) -> None:
        self.b.branch(self.loops[-1][0])

    def do_break(self, node: ast.Break) -> None:
        self.b.branch(self.loops[-1][1])

    def do_if(self, node: ast.If) -> None:
        test = self.truth(node.test)
        if isinstance(test, ir.Constant):
            self.suite(node.body if test.constant else node.orelse)
            return
        then, end = self.made.append_basic_block(), self.made.append_basic_block()
        other = self.made.append_basic_block() if node.orelse else end
        self.b.cbranch(test, then, other)
        for block, statements in ((then, node.body), (other, node.orelse)):
            if statements:
                self.b.position_at_end(block)
                self.suite(statements)
                if not self.b.block.is_terminated:
                    self.b.branch(end)
        self.b.position_at_end(end)

    def do_while(self, node: ast.While) -> None:
        head, body, end = (self.made.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.truth(node.test), body, end)
        self.turn(node.body, body, head, end)

    def do_for(self, node: ast.For) -> None:
        if not (
            isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Call)
            and self.static(node.iter.func) is range
            and len(node.iter.args) <= 2
        ):
            raise self.refused(node)
        *first, last = [self.as_type(self.value(bound), INT) for bound in node.iter.args]
        at = self.head.alloca(INT)
        self.b.store(first[0] if first else INT(0), at)
        head, body, step, end = (self.made.append_basic_block() for _ in range(4))
        self.b.branch(head)
        self.b.position_at_end(head)
        now = self.b.load(at)
        self.b.cbranch(self.b.icmp_signed("<", now, last), body, end)
        self.b.position_at_end(body)
        self.set_variable(node.target.id, now)
        self.turn(node.body, body, step, end)
        self.b.position_at_end(step)
        self.b.store(self.b.add(self.b.load(at), INT(1)), at)
        self.b.branch(head)
        self.b.position_at_end(end)

    def turn(self, statements: Sequence[ast.stmt], body: ir.Block, again: ir.Block, end: ir.Block) -> None:
        self.b.position_at_end(body)
        self.loops.append((again, end))
        self.suite(statements)
        self.loops.pop()
        if not self.b.block.is_terminated:
            self.b.branch(again)
        self.b.position_at_end(end)

    def do_assign(self, node: ast.Assign) -> None:
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        values = [self.value(part) for part in parts]  # once, however many are assigned to
        for target in node.targets:
            if isinstance(target, ast.Tuple) is not isinstance(node.value, ast.Tuple):
                raise self.refused(target)
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name, value in zip(names, values, strict=True):
                self.assign(name, value)

    def do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.assign(node.target, self.binary(node, self.value(node.target), self.value(node.value)))
            return
        assert isinstance(node.target, ast.Subscript)
        place, array = self.place(node.target)
        changed = self.binary(node, self.load(place, array), self.value(node.value))
        self.store(changed, place, array)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.set_variable(target.id, value)
        elif isinstance(target, ast.Subscript):
            self.store(value, *self.place(target))
        else:
            raise self.refused(target)

    def set_variable(self, name: str, value: Any) -> None:
        if isinstance(value, _State | _Array):
            self.variables[name] = value
            return
        if name not in self.variables:
            self.variables[name] = self.head.alloca(value.type, name=name)
        variable = self.variables[name]
        self.b.store(self.as_type(value, variable.allocated_type), variable)

    # -------------------------------------------------------------------------------------------------- elements

    def place(self, node: ast.Subscript) -> tuple[ir.Value, _Array]:
        """Return where an element stands."""
        array = self.value(node.value)
        if not isinstance(array, _Array):
            raise self.refused(node)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        at = [
            self.from_the_start(self.as_type(self.value(index), INT), array, axis)
            for axis, index in enumerate(indices)
        ]
        offset = at[0] if len(at) == 1 else self.b.add(self.b.mul(at[0], self.length(array, 1)), at[1])
        return self.b.gep(self.constant(array, 0), [offset]), array

    def from_the_start(self, index: ir.Value, array: _Array, axis: int) -> ir.Value:
        if isinstance(index, ir.Constant) and index.constant >= 0:
            return index
        negative = self.b.icmp_signed("<", index, INT(0))
        return self.b.select(negative, self.b.add(index, self.length(array, axis)), index)

    def length(self, array: _Array, axis: Any) -> ir.Value:
        return self.constant(array, 1 + axis)

    def constant(self, array: _Array, part: int) -> ir.Value:
        number = ir.IntType(32)
        loaded = self.b.load(self.b.gep(array.pointer, [number(0), number(3 * array.field + part)]))
        loaded.set_metadata("invariant.load", self.unit.constant)
        return loaded

    def load(self, place: ir.Value, array: _Array) -> ir.Value:
        return self.alone(self.b.load(place), array)

    def store(self, value: Any, place: ir.Value, array: _Array) -> None:
        self.alone(self.b.store(self.as_type(value, self.unit.elements[array.field]), place), array)

    def alone(self, access: Any, array: _Array) -> Any:
        """Mark an access as touching one array."""
        access.set_metadata("alias.scope", self.unit.mine[array.field])
        access.set_metadata("noalias", self.unit.others[array.field])
        return access

    # ----------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr) -> Any:
        handler = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if handler is None:
            raise self.refused(node)
        return handler(node)

    def truth(self, node: ast.expr) -> ir.Value:
        return self.as_bool(self.value(node))

    def static(self, node: ast.expr) -> Any:
        """Return what a name outside the kernel stands for."""
        if isinstance(node, ast.Name) and node.id not in self.variables:
            return self.globals[node.id] if node.id in self.globals else getattr(builtins, node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self.static(node.value), node.attr)
        raise self.refused(node)

    def of_constant(self, node: ast.Constant) -> ir.Value:
        return self.literal(node.value, node)

    def literal(self, value: Any, node: ast.expr) -> ir.Value:
        for kind, as_type in ((bool, BOOL), (int, INT), (float, FLOAT)):
            if isinstance(value, kind):
                return as_type(value)
        raise self.refused(node)

    def of_name(self, node: ast.Name) -> Any:
        known = self.variables.get(node.id)
        if known is None:
            return self.literal(self.static(node), node)
        return known if isinstance(known, _State | _States | _Array) else self.b.load(known)

    def of_attribute(self, node: ast.Attribute) -> Any:
        of = node.value
        state = self.variables.get(of.id) if isinstance(of, ast.Name) else None
        if isinstance(of, ast.Subscript):
            state = self.value(of)
        if isinstance(state, _State):
            return _Array(state.pointer, self.unit.fields.index(node.attr))
        return self.literal(self.static(node), node)

    def of_subscript(self, node: ast.Subscript) -> Any:
        of = node.value
        states = self.variables.get(of.id) if isinstance(of, ast.Name) else None
        if isinstance(states, _States):
            return _State(self.b.gep(states.pointer, [self.as_type(self.value(node.slice), INT)]))
        if isinstance(of, ast.Attribute) and of.attr == "shape" and isinstance(node.slice, ast.Constant):
            return self.length(self.value(of.value), node.slice.value)
        return self.load(*self.place(node))

    def of_unaryop(self, node: ast.UnaryOp) -> ir.Value:
        if isinstance(node.op, ast.Not):
            return self.negated(self.truth(node.operand))
        value = self.as_number(self.value(node.operand))
        if not isinstance(node.op, ast.USub):
            raise self.refused(node)
        if isinstance(value, ir.Constant):
            return value.type(-value.constant)
        return self.b.neg(value) if value.type == INT else self.b.fneg(value)

    def negated(self, value: ir.Value) -> ir.Value:
        return BOOL(not value.constant) if isinstance(value, ir.Constant) else self.b.not_(value)

    def of_boolop(self, node: ast.BoolOp) -> ir.Value:
        return self.logical(isinstance(node.op, ast.And), node.values)

    def logical(self, both: bool, operands: Sequence[ast.expr]) -> ir.Value:
        """`and` or `or`, as a truth value."""
        first = self.truth(operands[0])
        if len(operands) == 1:
            return first
        if isinstance(first, ir.Constant):
            return self.logical(both, operands[1:]) if bool(first.constant) == both else first
        here, more, end = self.b.block, self.made.append_basic_block(), self.made.append_basic_block()
        self.b.cbranch(first, *((more, end) if both else (end, more)))
        self.b.position_at_end(more)
        second = self.logical(both, operands[1:])
        return self.joined(BOOL(not both), here, second, end)

    def joined(self, first: ir.Value, before: ir.Block, second: ir.Value, end: ir.Block) -> ir.Value:
        """Join the values of a block and of this one where both ways meet."""
        there = self.b.block
        self.b.branch(end)
        self.b.position_at_end(end)
        both = self.b.phi(second.type)
        both.add_incoming(first, before)
        both.add_incoming(second, there)
        return both

    def of_ifexp(self, node: ast.IfExp) -> ir.Value:
        test = self.truth(node.test)
        if isinstance(test, ir.Constant):
            return self.value(node.body if test.constant else node.orelse)
        then, other, end = (self.made.append_basic_block() for _ in range(3))
        self.b.cbranch(test, then, other)
        self.b.position_at_end(then)
        first = self.as_number(self.value(node.body))
        before = self.b.block
        self.b.branch(end)
        self.b.position_at_end(other)
        second = self.as_number(self.value(node.orelse))
        if first.type != second.type:
            raise self.refused(node)
        return self.joined(first, before, second, end)

    def of_compare(self, node: ast.Compare) -> ir.Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        results = [
            self.compared(_COMPARED[type(op)], *self.alike(*pair))
            for op, pair in zip(node.ops, pairwise(values), strict=True)
        ]
        whole = results[0]
        for further in results[1:]:
            whole = self.b.and_(whole, further)
        return whole

    def compared(self, sign: str, a: ir.Value, b: ir.Value) -> ir.Value:
        if a.type == INT:
            return self.b.icmp_signed(sign, a, b)
        return self.b.fcmp_unordered(sign, a, b) if sign == "!=" else self.b.fcmp_ordered(sign, a, b)

    def of_binop(self, node: ast.BinOp) -> ir.Value:
        return self.binary(node, self.value(node.left), self.value(node.right))

    def binary(self, node: ast.BinOp | ast.AugAssign, left: Any, right: Any) -> ir.Value:
        a, b = self.alike(left, right)
        whole = a.type == INT
        match node.op:
            case ast.Add():
                return self.b.add(a, b) if whole else self.b.fadd(a, b)
            case ast.Sub():
                return self.b.sub(a, b) if whole else self.b.fsub(a, b)
            case ast.Mult():
                return self.b.mul(a, b) if whole else self.b.fmul(a, b)
            case ast.Div():
                return self.b.fdiv(self.as_type(a, FLOAT), self.as_type(b, FLOAT))
            case ast.Pow():
                return self.intrinsic("llvm.pow", self.as_type(a, FLOAT), self.as_type(b, FLOAT))
            case ast.BitAnd() if whole:
                return self.b.and_(a, b)
        if not whole or not isinstance(node.op, ast.FloorDiv | ast.Mod):
            raise self.refused(node)
        rest = self.b.srem(a, b)  # of the sign of a, in Python of that of b
        differs = self.b.icmp_signed("<", self.b.xor(rest, b), INT(0))
        lower = self.b.and_(differs, self.b.icmp_signed("!=", rest, INT(0)))
        if isinstance(node.op, ast.Mod):
            return self.b.select(lower, self.b.add(rest, b), rest)
        return self.b.sub(self.b.sdiv(a, b), self.b.zext(lower, INT))

    def of_call(self, node: ast.Call) -> Any:
        function = self.static(node.func)
        if function in self.unit.constants:
            return BOOL(self.unit.constants[function])
        values = [self.value(argument) for argument in node.args]
        if function in (int, float, bool):
            return self.cast(function, values[0])
        if function in _LARGER:
            return self.largest(_LARGER[function], values)
        if function is math.isnan:
            return self.b.fcmp_unordered("uno", values[0], values[0])
        if function in _ROUNDED:
            return self.b.fptosi(self.intrinsic(_ROUNDED[function], values[0]), INT)
        if function in _FUNCTIONS:
            return self.intrinsic(_FUNCTIONS[function], values[0])
        return self.kernel(function, values)

    def cast(self, kind: type, value: ir.Value) -> ir.Value:
        if kind is bool:
            return self.as_bool(value)
        if kind is int and value.type == FLOAT:
            return self.b.fptosi(value, INT)
        return self.as_type(value, INT if kind is int else FLOAT)

    def largest(self, sign: str, values: Sequence[ir.Value]) -> ir.Value:
        first = values[0]
        for value in values[1:]:
            a, b = self.alike(first, value)
            first = self.b.select(self.compared(sign, b, a), b, a)
        return first

    def intrinsic(self, name: str, *values: ir.Value) -> ir.Value:
        function = self.unit.module.declare_intrinsic(name, [FLOAT])
        return self.b.call(function, [self.as_type(value, FLOAT) for value in values])

    def kernel(self, function: Callable[..., Any], values: list[Any]) -> ir.Value:
        if not inspect.isfunction(function):
            raise TypeError(f"no kernel calls {function!r}, as {self.made.name} does")
        wanted = [
            _ANNOTATED.get(getattr(p.annotation, "__name__", ""))
            for p in inspect.signature(function).parameters.values()
        ]
        given = [v if t is None else self.as_type(v, t) for v, t in zip(values, wanted, strict=True)]
        kinds = tuple(
            type(v) if isinstance(v, _State | _States) else v.field if isinstance(v, _Array) else v.type
            for v in given
        )
        made = self.unit.function(function, kinds)
        known = _always(made)
        if known is not None:
            return known
        return self.b.call(
            made, [v.pointer if isinstance(v, _State | _States | _Array) else v for v in given]
        )

    # ---------------------------------------------------------------------------------------------------- kinds

    def as_bool(self, value: ir.Value) -> ir.Value:
        if value.type == BOOL:
            return value
        return self.compared("!=", value, value.type(0))

    def as_number(self, value: ir.Value) -> ir.Value:
        return self.as_type(value, INT) if value.type == BOOL else value

    def alike(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Two numbers, as floats if one of them is."""
        kind = FLOAT if FLOAT in (a.type, b.type) else INT
        return self.as_type(a, kind), self.as_type(b, kind)

    def as_type(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        """Return the same number as another kind, if that loses nothing."""
        if value.type == kind:
            return value
        if isinstance(value, ir.Constant) and kind != BOOL and value.type != FLOAT:
            return kind(float(value.constant) if kind == FLOAT else int(value.constant))
        if kind == FLOAT:
            return self.b.uitofp(value, FLOAT) if value.type == BOOL else self.b.sitofp(value, FLOAT)
        if kind == INT and value.type == BOOL:
            return self.b.zext(value, INT)
        raise TypeError(f"{self.made.name} makes a {value.type} a {kind}")


def _always(made: ir.Function) -> ir.Constant | None:
    """Return what a kernel always returns, if it does nothing else."""
    last = made.blocks[-1].terminator
    if len(made.blocks) > 2 or len(made.blocks[-1].instructions) > 1 or last is None or not last.operands:
        return None
    return last.operands[0] if isinstance(last.operands[0], ir.Constant) else None
