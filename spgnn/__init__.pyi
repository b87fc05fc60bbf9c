from .addons.batches import LinkNeighborLoader as LinkNeighborLoader
from .addons.batches import NeighborLoader as NeighborLoader
from .addons.dynamic import Embeddings as Embeddings
from .autograd import product as product
from .comm import Mesh as Mesh
from .comm import connect as connect
from .errors import InputError as InputError
from .frontend import distribute as distribute
from .graph import DistGraph as DistGraph
from .halo import Halo as Halo
from .inference import infer as infer
from .layout import Axes as Axes
from .layout import RowLayout as RowLayout
from .pattern import Pattern as Pattern
from .sparse import CSR as CSR
from .spmm import DistMatrix as DistMatrix
from .train import Trainer as Trainer
from .train import load as load
from .train import save as save

__version__: str
