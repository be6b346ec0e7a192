"""Text in, text out: the synchronous and the asynchronous runtime, and the wiring of both."""
