from .graph import HeteroDistGraph as HeteroDistGraph
from .layers import HANConv as HANConv
from .layers import HeteroConv as HeteroConv
from .layers import HGTConv as HGTConv
from .relational import RGCNConv as RGCNConv
