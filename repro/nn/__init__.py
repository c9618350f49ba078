"""Models: what a method may change (method_api), the Transformer around it, and the contract a method must keep."""
