"""Plans, and what runs them: every matrix is a product of stages ``L + R·Π·S``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
