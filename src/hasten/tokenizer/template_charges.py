"""Rewrites a template's syntax tree so that loops, texts and comparisons pay from the budget of the rendering.

What jinja2 calls through the environment (calls, filters, tests, intercepted operators) pays there; this is for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from hasten.tokenizer.template_budget import TEXT_PER_STEP, Turns, current

_PAID_LOOP, _PAID_BODY, _PAID, _WEIGHED = "hasten_loop", "hasten_body", "hasten_made", "hasten_weighed"


@pass_context  # keeps jinja2 from folding it into a constant; likewise below
def _paid_loop(_context: Context, items: Iterable[Any], num_steps: int) -> Turns:
    return Turns(items, current(), num_steps)


@pass_context
def _paid_body(_context: Context, num_steps: int) -> str:
    current().spend(num_steps)
    return ""


@pass_context
def _paid(_context: Context, value: Any) -> Any:
    return current().made(value)


@pass_context
def _weighed(_context: Context, value: Any) -> Any:
    current().weigh(value)
    return value


FILTERS = {_PAID_LOOP: _paid_loop, _PAID_BODY: _paid_body, _PAID: _paid, _WEIGHED: _weighed}


class ChargingCodeGenerator(CodeGenerator):
    """jinja2's compiler, on trees in which everything is paid for."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:  # noqa: N802 (jinja2's name)
        node = _Charges().visit(node)
        node.set_environment(self.environment)
        super().visit_Template(node, frame)


class _Charges(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), _PAID_LOOP, node.lineno, _text_steps(node.body))
        return node

    def _visit_body(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        paid = _filtered(nodes.Const(_text_steps(node.body), lineno=node.lineno), _PAID_BODY, node.lineno)
        node.body.insert(0, nodes.ExprStmt(paid, lineno=node.lineno))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = _visit_body  # noqa: N815

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _PAID, node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_weighed_node(child) for child in node.nodes]
        return _filtered(node, _PAID, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _weighed_node(node.expr)
        for operand in node.ops:
            operand.expr = _weighed_node(operand.expr)
        return node


def _weighed_node(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filtered(node, _WEIGHED, node.lineno)


def _filtered(node: nodes.Expr | None, name: str, lineno: int, *args: int) -> nodes.Filter:
    consts = [nodes.Const(arg, lineno=lineno) for arg in args]
    return nodes.Filter(node, name, consts, [], None, None, lineno=lineno)


def _text_steps(body: list[nodes.Node]) -> int:
    """Steps for the template's own text between the tags, which is printed without a call."""
    num_chars = sum(len(data.data) for node in body for data in _texts(node))
    return 1 + num_chars // TEXT_PER_STEP


def _texts(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)
