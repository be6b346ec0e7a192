"""Which bucket and which mode serve a step."""
