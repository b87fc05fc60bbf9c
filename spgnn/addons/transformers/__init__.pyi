from .models import GPS as GPS
from .models import GPSConv as GPSConv
from .models import Polynormer as Polynormer
from .models import SGFormer as SGFormer
