from .command import main as main
from .command import train as train
from .config import RecommendConfig as RecommendConfig
from .interactions import Interactions as Interactions
from .interactions import open_interactions as open_interactions
from .ranking import top_k as top_k
