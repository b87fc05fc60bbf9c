from .algorithm import (
    ALGOS as ALGOS,
)
from .algorithm import (
    Algo as Algo,
)
from .algorithm import (
    Algorithm as Algorithm,
)
from .clones import (
    cloned as cloned,
)
from .codec import (
    LEAST_WITH_FEEDBACK as LEAST_WITH_FEEDBACK,
)
from .codec import (
    Codec as Codec,
)
from .executor import (
    Executor as Executor,
)
from .layers import (
    layered as layered,
)
from .needs import (
    BYTES_OF_COLUMN as BYTES_OF_COLUMN,
)
from .needs import (
    BYTES_OF_COUNTS as BYTES_OF_COUNTS,
)
from .needs import (
    COVERS as COVERS,
)
from .needs import (
    CoverChoice as CoverChoice,
)
from .needs import (
    build as build,
)
from .needs import (
    build_all as build_all,
)
from .needs import (
    exchange_needs as exchange_needs,
)
from .needs import (
    needs_of as needs_of,
)
from .needs import (
    swap_counts as swap_counts,
)
from .needs import (
    swap_rows as swap_rows,
)
from .plan import (
    Hop as Hop,
)
from .plan import (
    Plan as Plan,
)
from .plan import (
    Stage as Stage,
)
from .plan import (
    Turn as Turn,
)
from .plan import (
    Turned as Turned,
)
from .schemes import (
    fetch as fetch,
)
from .transport import (
    EXACT as EXACT,
)
from .transport import (
    Step as Step,
)
