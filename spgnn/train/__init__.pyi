from . import (
    report as report,
)
from .callbacks import (
    Callback as Callback,
)
from .checkpoint import (
    load as load,
)
from .checkpoint import (
    save as save,
)
from .checkpoint import (
    set_optimizer as set_optimizer,
)
from .links import (
    HELD_OUT as HELD_OUT,
)
from .links import (
    LinkModel as LinkModel,
)
from .links import (
    LinkScores as LinkScores,
)
from .links import (
    purpose_of as purpose_of,
)
from .measure import (
    gathered as gathered,
)
from .measure import (
    timed as timed,
)
from .run import (
    callbacks_of as callbacks_of,
)
from .run import (
    check_run as check_run,
)
from .run import (
    check_targets as check_targets,
)
from .run import (
    run_all as run_all,
)
from .run import (
    task_of as task_of,
)
from .run import (
    train as train,
)
from .task import (
    Criterion as Criterion,
)
from .task import (
    Predictions as Predictions,
)
from .task import (
    Scores as Scores,
)
from .task import (
    Task as Task,
)
from .task import (
    decaying_first as decaying_first,
)
from .task import (
    graph_section as graph_section,
)
from .task import (
    model_of as model_of,
)
from .trainer import (
    OPTIMIZERS as OPTIMIZERS,
)
from .trainer import (
    Trainer as Trainer,
)
from .vertices import (
    Objective as Objective,
)
from .vertices import (
    as_taken as as_taken,
)
