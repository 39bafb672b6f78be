"""`hasten quantize`: a model in, a quantised checkpoint that other tools read out."""

from hasten.core.quantize.options import QuantizeOptions
from hasten.core.quantize.run import quantize_model
from hasten.core.quantize.tokens import cut_sequences, write_own_text

__all__ = ["QuantizeOptions", "cut_sequences", "quantize_model", "write_own_text"]
