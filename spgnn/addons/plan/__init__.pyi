from .choose import Choice as Choice
from .choose import Planner as Planner
from .choose import PricedPlan as PricedPlan
from .graphs import Dataset as Dataset
from .predict import Prediction as Prediction
from .predict import predict as predict
