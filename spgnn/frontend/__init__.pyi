from .distribute import (
    distribute as distribute,
)
from .from_config import (
    check_weights_of as check_weights_of,
)
from .from_config import (
    dense_for_reduction as dense_for_reduction,
)
from .from_config import (
    features_of as features_of,
)
from .from_config import (
    labels_of as labels_of,
)
from .from_config import (
    made_up_labels as made_up_labels,
)
from .from_config import (
    masks_of as masks_of,
)
from .from_config import (
    normalisation_of as normalisation_of,
)
from .from_config import (
    random_features as random_features,
)
from .from_config import (
    share_of as share_of,
)
from .from_config import (
    training_graph as training_graph,
)
from .sources import (
    Opened as Opened,
)
from .sources import (
    Placement as Placement,
)
from .sources import (
    is_cut as is_cut,
)
from .sources import (
    kind_of as kind_of,
)
from .sources import (
    open_data as open_data,
)
from .sources import (
    scattered_share as scattered_share,
)
