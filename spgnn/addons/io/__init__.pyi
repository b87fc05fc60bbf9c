from .columns import (
    SUFFIXES as SUFFIXES,
)
from .columns import (
    column_for as column_for,
)
from .columns import (
    is_row_number as is_row_number,
)
from .columns import (
    words_around as words_around,
)
from .parquet import (
    is_tabular as is_tabular,
)
from .parquet import (
    read_pairs as read_pairs,
)
from .through_disk import (
    is_edge_file as is_edge_file,
)
from .through_disk import (
    open_through_disk as open_through_disk,
)
