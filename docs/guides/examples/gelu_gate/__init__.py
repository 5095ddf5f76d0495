"""gelu_gate: y = gelu(gate) * up, GELU by its tanh formula: the gate of a GeGLU MLP."""

from tercet.ops.gelu_gate.op import gelu_gate

__all__ = ["gelu_gate"]
