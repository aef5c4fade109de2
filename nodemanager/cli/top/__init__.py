"""The verb ``top``: a live view of the whole terminal, with keys to explain and to steer."""
