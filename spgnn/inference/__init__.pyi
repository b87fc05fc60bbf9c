from .forward import infer as infer
from .weights import load_weights as load_weights
from .weights import save_weights as save_weights
