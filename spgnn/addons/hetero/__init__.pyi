from .graph import HeteroDistGraph as HeteroDistGraph
from .layers import HANConv as HANConv
from .layers import HeteroConv as HeteroConv
from .layers import HGTConv as HGTConv
from .models import HGT as HGT
from .models import RGAT as RGAT
from .models import RGCN as RGCN
from .relational import RGCNConv as RGCNConv
