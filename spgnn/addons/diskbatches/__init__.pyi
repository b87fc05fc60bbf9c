from .cached_rows import (
    CachedRows as CachedRows,
)
from .disk_pattern import (
    DiskPattern as DiskPattern,
)
from .packed_rows import (
    PackedRows as PackedRows,
)
from .superbatch import (
    Drawn as Drawn,
)
from .superbatch import (
    NodesOnDisk as NodesOnDisk,
)
from .superbatch import (
    SampleFile as SampleFile,
)
from .superbatch import (
    through_a_disk as through_a_disk,
)
