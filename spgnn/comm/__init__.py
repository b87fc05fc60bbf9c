"""Communication: one communicator, whatever the launcher and the transport.

Nothing outside this package imports torch.distributed or mpi4py.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
