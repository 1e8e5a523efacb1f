"""The ``browser`` tool: a real Chromium, driven over the Chrome DevTools protocol."""
