"""OpenAI's API over AsyncRuntime: what a request may say, how answers are written, and the process
that serves them."""
