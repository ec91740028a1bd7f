"""The model. These files import nothing else of this package: they are copied beside the weights as remote code."""
