"""The stores: protocols in this package, implementations on files in ``files`` and on a database in ``postgres``."""
