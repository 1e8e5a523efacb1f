"""The seam between the Gateway and what it keeps: protocols in ``base``, one machine's implementation in ``files``."""
