"""The results of WebSocket methods, as records: methods return them, the CLI renders them, and the docs list them."""
