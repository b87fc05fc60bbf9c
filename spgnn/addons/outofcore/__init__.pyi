from .adjacency import (
    Adjacency as Adjacency,
)
from .adjacency import (
    MatrixStorage as MatrixStorage,
)
from .adjacency import (
    even_bounds as even_bounds,
)
from .adjacency import (
    statistics_of as statistics_of,
)
from .adjacency import (
    whole_matrix as whole_matrix,
)
from .blocks import (
    MemoryBlocks as MemoryBlocks,
)
from .budget import (
    LIBRARIES as LIBRARIES,
)
from .budget import (
    Budget as Budget,
)
from .budget import (
    choose_recomputed as choose_recomputed,
)
from .budget import (
    decide as decide,
)
from .budget import (
    keep_first as keep_first,
)
from .budget import (
    memory_needed as memory_needed,
)
from .budget import (
    merged as merged,
)
from .model import (
    ChunkedModel as ChunkedModel,
)
from .sizes import (
    OWN_MATRIX as OWN_MATRIX,
)
from .sizes import (
    OWN_ON_DISK as OWN_ON_DISK,
)
from .sizes import (
    Sizes as Sizes,
)
from .tables import (
    Placement as Placement,
)
from .tables import (
    Table as Table,
)
from .tables import (
    TableFactory as TableFactory,
)
