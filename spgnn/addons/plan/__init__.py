"""Plans for ranks that do not exist: what a configuration would cost, and which is best."""

import lazy_loader

from spgnn.registry import COMMANDS, PLANNERS, PROGRAMS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

COMMANDS.add(
    "machine",
    (
        "Measure this machine.",
        "spgnn.addons.plan.cli:run_machine",
        "spgnn.addons.plan.options:MachineOptions",
    ),
)
COMMANDS.add(
    "plan",
    (
        "Rank all configurations of training a graph by predicted seconds.",
        "spgnn.addons.plan.cli:run_plan",
        "spgnn.addons.plan.options:PlanConfig",
    ),
)
PROGRAMS.add("spgnn plan", "spgnn.addons.plan.options:PlanConfig")
PLANNERS.add("training", "spgnn.addons.plan.planned:fill_in")
PLANNERS.add("distribute", "spgnn.addons.plan.planned:planned_placement")
PLANNERS.add("types", "spgnn.addons.plan.types:plan_types")
