"""Quantising with other people's tools, each in an environment of its own."""

from hasten.core.quantize.tools.catalogue import TOOLS, Tool
from hasten.core.quantize.tools.environment import ToolEnvironment
from hasten.core.quantize.tools.run import quantize_with_tool

__all__ = ["TOOLS", "Tool", "ToolEnvironment", "quantize_with_tool"]
