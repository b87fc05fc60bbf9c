from .historical import (
    History as History,
)
from .historical import (
    PartBatches as PartBatches,
)
from .historical import (
    PartialBatch as PartialBatch,
)
from .historical import (
    hidden_widths as hidden_widths,
)
