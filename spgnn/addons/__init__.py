"""Features that some users need, on top of the engine; the engine imports none of it."""
