from .communicator import (
    Communicator as Communicator,
)
from .communicator import (
    Pending as Pending,
)
from .communicator import (
    SoloCommunicator as SoloCommunicator,
)
from .connect import (
    connect as connect,
)
from .failure import (
    CommunicationError as CommunicationError,
)
from .failure import (
    guarded as guarded,
)
from .launch import (
    launch as launch,
)
from .launch import (
    run_job as run_job,
)
from .mesh import (
    Mesh as Mesh,
)
from .place import (
    BACKENDS as BACKENDS,
)
from .traffic import (
    Ledger as Ledger,
)
from .traffic import (
    RowCounts as RowCounts,
)
from .traffic import (
    bytes_of_ranks as bytes_of_ranks,
)
