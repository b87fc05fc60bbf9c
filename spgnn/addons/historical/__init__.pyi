from .historical import History as History
from .historical import Local as Local
from .historical import hidden_widths as hidden_widths
