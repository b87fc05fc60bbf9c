from .engine import (
    Attention as Attention,
)
from .operators import (
    EdgeDropout as EdgeDropout,
)
from .operators import (
    attend as attend,
)
from .pieces import (
    Partials as Partials,
)
from .pieces import (
    Pieces as Pieces,
)
from .pieces import (
    pieces as pieces,
)
from .scores import (
    Block as Block,
)
from .scores import (
    Scores as Scores,
)
from .scores import (
    Whole as Whole,
)
