from .labels import (
    check_labels as check_labels,
)
from .labels import (
    permutation as permutation,
)
from .labels import (
    read_labels as read_labels,
)
from .labels import (
    write_labels as write_labels,
)
from .methods import (
    METHODS as METHODS,
)
from .methods import (
    OURS as OURS,
)
from .methods import (
    partition as partition,
)
from .morton import (
    morton as morton,
)
from .places import (
    place as place,
)
from .plot import (
    check_plot as check_plot,
)
from .plot import (
    write_figure as write_figure,
)
from .problem import (
    Objective as Objective,
)
from .problem import (
    Preset as Preset,
)
from .vertex_cut import (
    cut_vertices as cut_vertices,
)
from .volume import (
    report as report,
)
